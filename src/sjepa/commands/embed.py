"""`sjepa embed`: write features, posteriors or units of recordings to files."""

import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import tyro

from sjepa.bounds import AMOUNT, INDEX
from sjepa.counts import format_count
from sjepa.data.arrow import import_arrow
from sjepa.device import Device
from sjepa.embed.window_config import WindowConfig
from sjepa.errors import UserError
from sjepa.files import escape_text, is_used, read_json, write_whole
from sjepa.model.stream_config import StreamConfig
from sjepa.subcommands import option, parse

if TYPE_CHECKING:
    from sjepa.embed.network import Network, Reader
    from sjepa.embed.readout import Readout

SETTINGS, REFUSED = "_embed.json", "_refused.txt"  # readers of Parquet folders skip names with an underscore
METADATA = ("encoder", "fingerprint", "what", "layer")  # settings that every output file carries
# The path of the encoder can be spelled in several ways. The fingerprint of the weights tells encoders apart.
INCIDENTAL = ("encoder",)
CLUSTERS = "clusters"  # a setting of posteriors and units, which output of earlier versions lacks
LIVE = "stream"  # a setting of streams, in place of the window


@dataclass(frozen=True)
class Embed:
    """Write features of any layer, posteriors or units of audio files, with times, to one output file per input file.

    Long recordings are encoded in overlapping windows, so memory stays bounded. Run the same command again to continue.
    Under torchrun, the processes share the files. With --live, the output of a stream is written as the audio arrives.
    """

    files: tyro.conf.Positional[tuple[Path, ...]]
    """Audio files (wav, flac, ogg, opus or mp3 of any rate) or folders of them. With --live: one file, or -."""
    encoder: Path
    """A run, an encoder folder, a Hugging Face HuBERT folder, a file of weights, or the name of a shipped encoder."""
    out: Path
    """Folder for the output. With --live, - prints one JSON object per row instead."""
    step: Annotated[int | None, INDEX] = None
    """Use the checkpoint at this step instead of the newest encoder of a run; see train.keep_every."""
    what: Literal["features", "mixture", "head", "units"] = "features"
    """What to write: features of a layer, posteriors of the mixture, posteriors of the cluster head, or units, the most
    likely component of each frame."""
    source: Annotated[Literal["mixture", "head"], tyro.conf.arg(name="from")] = "head"
    """For units: take them from the cluster head on the last layer, or from the mixture on its own layer."""
    layer: str = "last"
    """For features: a layer number from 0, last, input (the input of layer 0), or all, with one column per layer."""
    pool: Literal["none", "mean"] = "none"
    """Write every frame (none), or the mean over each recording (mean)."""
    deduplicate: bool = False
    """For units: merge neighbouring frames with the same unit into one row with its start and end."""
    format: Literal["npz", "safetensors", "parquet"] = "npz"
    """Format of the output files."""
    window: Annotated[WindowConfig, tyro.conf.arg(name="window")] = field(default_factory=WindowConfig)
    live: bool = False
    """Process one file as a stream, or raw 16-bit samples at 16 kHz from the standard input (-)."""
    stream: Annotated[StreamConfig, tyro.conf.arg(name="stream")] = field(default_factory=StreamConfig)
    batch_seconds: Annotated[float, AMOUNT] = 60.0
    """Recordings that fit in one window are encoded in batches of at most this much audio. Memory grows with it."""
    device: Device = "auto"
    """Where to run; auto uses a GPU if there is one. The precision is always fp32."""
    force: bool = False
    """Replace existing files. Output with other settings in the same folder is deleted."""


def run(arguments: list[str]) -> None:
    if option(arguments, "--what") == "posteriors":
        raise UserError("--what posteriors: choose --what mixture, or --what head for the cluster head")
    command = parse(Embed, "sjepa embed", arguments)
    if not command.files:
        raise UserError("no files given: sjepa embed FILES... --encoder RUN --out FOLDER")
    if command.what != "features" and command.layer != "last":
        raise UserError("--layer is only for --what features: the mixture and the cluster head have their own layers")
    if command.source != "head" and command.what != "units":
        raise UserError(f"--from is only for --what units; for posteriors use --what {command.source}")
    if command.format == "parquet":
        import_arrow("--format parquet")
    if command.live:
        run_live(command)
    else:
        run_files(command)


def run_files(command: Embed) -> None:
    from sjepa import distributed
    from sjepa.data.corpus import describe_refused
    from sjepa.embed.live import STDIN
    from sjepa.embed.recordings import Embedding, Outcome, Recording, check_sources, embed, find_recordings
    from sjepa.locks import lock_folder

    if command.out == STDIN:
        raise UserError("--out - needs --live: otherwise, give a folder")
    readout, network = load_network(command)
    settings = describe_settings(command, network) | {"window": asdict(command.window)}

    def begin() -> tuple[list[Recording], list[str]]:
        holding.enter_context(lock_folder(command.out))
        check_folder(command.out, settings, command.force)
        found = find_recordings(command.files)
        if not command.force:
            check_sources(found[0], command.out, command.format)
        remove_other_output(command.out, settings)
        write_settings(command.out, settings)
        return found

    with ExitStack() as holding:
        recordings, refused = distributed.broadcast_object(distributed.run_on_main_rank(begin))
        about = describe_output(settings)
        plan = Embedding(network, readout, command.window, command.format, command.batch_seconds, about)
        own = distributed.run_on_all_ranks(lambda: embed(recordings, command.out, plan, skip=not command.force))
        outcome = sum(distributed.gather_objects(own), Outcome())
        if not distributed.is_main():
            return
        refused = refused + outcome.refused
        if refused:
            write_whole(command.out / REFUSED, "".join(f"{reason}\n" for reason in refused))
            print(f"{len(refused)} left out, listed in {command.out / REFUSED}: {describe_refused(refused)}")
        else:
            (command.out / REFUSED).unlink(missing_ok=True)  # of an earlier start
        kept = len(recordings) - outcome.recordings - len(outcome.refused)
        if not outcome.recordings and not kept:
            raise UserError(f"nothing could be embedded: {describe_refused(refused)}")
        if not outcome.recordings:
            existing = f"the output of {format_count(kept, 'recording')} is already in {command.out}"
            print(f"Nothing to do: {existing}; --force computes it again")
            return
        skipped = f"; {kept:,} existed already" if kept else ""
        length = f"{outcome.seconds / 3600:,.2f} h" if outcome.seconds >= 3600 else f"{outcome.seconds:.1f} s"
        written = f"{format_count(outcome.recordings, 'recording')} ({length})"
        rows = f"{format_count(outcome.rows, 'row')} of {command.what}"
        print(f"Wrote {rows} from {written} to {command.out}{skipped}")


def run_live(command: Embed) -> None:
    """Embed one stream, to lines on the standard output or to one file."""
    from sjepa.embed.live import STDIN, embed_live, print_lines
    from sjepa.embed.recordings import SOURCE
    from sjepa.embed.tables import write_table
    from sjepa.locks import lock_folder

    if len(command.files) != 1:
        raise UserError("--live takes one file, or - for raw 16-bit samples at 16 kHz from the standard input")
    source = command.files[0]
    readout, network = load_network(command)
    pieces = embed_live(source, network, readout, command.stream)
    if command.out == STDIN:
        print_lines(pieces)
        return
    name = "stdin" if source == STDIN else source.name
    settings = describe_settings(command, network) | {LIVE: asdict(command.stream)}
    about = describe_output(settings) | {"file": escape_text(name)}
    about[SOURCE] = LIVE  # so that it is not taken for the output of a recording with this name
    about |= {f"stream.{key}": str(value) for key, value in asdict(command.stream).items()}
    target = command.out / f"{name}.{command.format}"
    with lock_folder(command.out):
        if target.exists() and not command.force:
            raise UserError(f"{target} exists: choose another --out, or replace it with --force")
        before = read_settings(command.out)
        if before is None:
            write_settings(command.out, settings)
        elif find_changes(before, settings) and not command.force:
            raise UserError(
                f"{command.out} has output with other settings: choose another --out, or write to it with --force"
            )
        rows = write_table(target, command.format, pieces, about)
    print(f"Wrote {format_count(rows, 'row')} of {command.what} to {target}")


def describe_settings(command: Embed, network: "Network") -> dict[str, Any]:
    """Return the settings that determine the output."""
    from sjepa.model.formats import fingerprint

    chosen = {name: getattr(command, name) for name in ("what", "layer", "pool", "deduplicate", "format")}
    if command.what == "units":
        chosen["what"] = f"units from {command.source}" if command.source != "head" else "units"
    encoder = str(command.encoder) + ("" if command.step is None else f" at step {command.step}")
    weights = network.encoder.loaded_fingerprint or fingerprint(network.encoder)
    clusters = {} if command.what == "features" else {CLUSTERS: fingerprint(network.encoder.clusters)}
    normalised = {"do_normalize": network.encoder.feature_extractor.normalizes_waveforms}
    return {"encoder": encoder, "fingerprint": weights} | normalised | chosen | clusters


def describe_output(settings: dict[str, Any]) -> dict[str, str]:
    """Return the metadata of every file with these settings."""
    return {name: escape_text(str(settings.get(name))) for name in METADATA}


def load_network(command: Embed) -> tuple["Readout", "Network"]:
    """Load the network, with the readout that turns its frames into columns."""
    from sjepa import distributed
    from sjepa.embed.network import ALL_LAYERS, load_frozen_encoder, make_network
    from sjepa.embed.readout import Readout

    all_layers = command.what == "features" and command.layer == ALL_LAYERS
    readout = Readout(command.what, command.pool == "mean", command.deduplicate)
    device = distributed.setup(command.device)
    encoder = load_frozen_encoder(command.encoder, command.step)
    reader: Reader = "layers"
    if command.what != "features":
        reader = command.source if command.what == "units" else command.what
    network = make_network(encoder, reader, command.layer, device)
    names = ("input", *map(str, range(encoder.config.layers))) if all_layers else ()
    return replace(readout, names=names), network


def read_settings(out: Path) -> dict[str, Any] | None:
    """Return the settings of the output in a folder, or None if `sjepa embed` has not written to it."""
    try:
        return dict(read_json(out / SETTINGS))
    except (OSError, UserError, TypeError, ValueError):
        return None


def write_settings(out: Path, settings: dict[str, Any]) -> None:
    write_whole(out / SETTINGS, json.dumps(settings, indent=1) + "\n")


def describe_change(before: dict[str, Any], settings: dict[str, Any], name: str) -> str:
    """Describe a setting that differs. An encoder is named, with the start of its fingerprint."""
    if name != "fingerprint":
        return f"{name} was {before.get(name)}, now {settings[name]}"
    was, now = (f"{each.get('encoder')} ({str(each.get(name))[:8]})" for each in (before, settings))
    return f"encoder was {was}, now {now}"


def find_changes(before: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """Return the names of the settings in which output differs from earlier output."""
    compared = [name for name in settings if name not in INCIDENTAL and (name in before or name != CLUSTERS)]
    return [name for name in compared if before.get(name) != settings[name]]


def remove_other_output(out: Path, settings: dict[str, Any]) -> None:
    """Delete the output with other settings. Otherwise a later command would take it for its own."""
    from sjepa.audio.io import show_path
    from sjepa.embed.tables import Format, read_metadata

    before = read_settings(out)
    if before is None or not find_changes(before, settings) or before.get("format") not in get_args(Format):
        return
    kind = before["format"]
    if kind == "parquet":
        import_arrow(f"the Parquet output in {out}")
    made_with = {name: value for name, value in describe_output(before).items() if name not in INCIDENTAL}
    for path in out.rglob(f"*.{kind}"):
        own = made_with | {"file": show_path(path.relative_to(out)).removesuffix(f".{kind}")}
        if own.items() <= read_metadata(path, kind).items():  # a file that only ends in .npz may be the user's
            path.unlink()


def check_folder(out: Path, settings: dict[str, Any], force: bool) -> None:
    """Raise UserError if the folder has output with other settings, or files that `sjepa embed` did not write."""
    if not is_used(out) or force:
        return
    before = read_settings(out)
    if before is None:
        raise UserError(f"{out} exists and was not written by `sjepa embed`: choose another --out, or add --force")
    if LIVE in before:
        raise UserError(f"{out} has the output of --live: choose another --out, or replace it with --force")
    changed = find_changes(before, settings)
    if changed:
        was = ", ".join(describe_change(before, settings, name) for name in changed)
        raise UserError(f"{out} was made with other settings ({was}): choose another --out, or replace it with --force")
