"""`sjepa embed`: what a frozen encoder makes of recordings, to files."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from sjepa.bounds import AMOUNT, INDEX
from sjepa.embed.windows import WindowConfig
from sjepa.errors import UserError
from sjepa.files import is_used, read_json
from sjepa.subcommands import parse

if TYPE_CHECKING:
    from sjepa.embed.network import Network

SETTINGS, REFUSED = "_embed.json", "_refused.txt"  # readers of Parquet folders pass over such names


@dataclass(frozen=True)
class Embed:
    """Features of any layer, cluster posteriors or unit ids of audio files, a file each, with times.

    Recordings of hours go through the encoder in overlapping windows; memory stays bounded. The same command continues
    what was stopped.
    """

    files: tyro.conf.Positional[tuple[Path, ...]]
    """Audio files (wav, flac, ogg, opus or mp3 of any rate), or folders of them."""
    encoder: Path
    """A run, an encoder folder, a Hugging Face HuBERT folder, or a file of weights; posteriors and units need a run."""
    out: Path
    """Folder of the results."""
    step: Annotated[int | None, INDEX] = None
    """The checkpoint of a run at this step in place of its newest encoder."""
    what: Literal["features", "posteriors", "units"] = "features"
    """Features of a layer; or the run's cluster head on the last one: its distribution, or its most likely unit."""
    layer: str = "last"
    """For features: a layer from 0, last, or input (what layer 0 reads)."""
    pool: Literal["none", "mean"] = "none"
    """Every frame, or the mean over a recording."""
    deduplicate: bool = False
    """Units: one row, with start and end, where neighbouring frames have the same unit."""
    format: Literal["npz", "safetensors", "parquet"] = "npz"
    """Format of the files."""
    window: Annotated[WindowConfig, tyro.conf.arg(name="window")] = field(default_factory=WindowConfig)
    batch_seconds: Annotated[float, AMOUNT] = 60.0
    """Recordings of at most a window go through the encoder together, up to so much audio; memory grows with it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run; auto takes a GPU where there is one. Always fp32."""
    force: bool = False
    """Write anew what is there already, also where it was made with other settings."""


def run(arguments: list[str]) -> None:
    command = parse(Embed, "sjepa embed", arguments)
    if not command.files:
        raise UserError("say what to embed: sjepa embed FILES... --encoder RUN --out FOLDER")
    from sjepa.data.corpus import first_of
    from sjepa.embed.readout import Readout
    from sjepa.embed.recordings import Embedding, embed, find_recordings
    from sjepa.files import write_whole
    from sjepa.locks import lock_folder
    from sjepa.model.formats import fingerprint

    readout = Readout(command.what, command.pool == "mean", command.deduplicate)
    if command.what != "features" and command.layer != "last":
        raise UserError("--layer is for --what features: the cluster head reads the last layer")
    if command.format == "parquet":
        require_pyarrow()
    network = load_network(command)
    settings = {
        "encoder": str(command.encoder) + ("" if command.step is None else f" at step {command.step}"),
        "fingerprint": fingerprint(network.encoder),
        **{name: getattr(command, name) for name in ("what", "layer", "pool", "deduplicate", "format")},
        "window": asdict(command.window),
    }
    with lock_folder(command.out):
        check_folder(command.out, settings, command.force)
        recordings, refused = find_recordings(command.files)
        write_whole(command.out / SETTINGS, json.dumps(settings, indent=1) + "\n")
        about = {name: str(settings[name]) for name in ("encoder", "fingerprint", "what", "layer")}
        plan = Embedding(network, readout, command.window, command.format, command.batch_seconds, about)
        outcome = embed(recordings, command.out, plan, skip=not command.force)
        refused += outcome.refused
        if refused:
            write_whole(command.out / REFUSED, "".join(f"{reason}\n" for reason in refused))
            print(f"{len(refused)} left out, listed in {command.out / REFUSED}: {first_of(refused)}")
        kept = len(recordings) - outcome.recordings - len(outcome.refused)
        if not outcome.recordings and not kept:
            raise UserError(f"nothing could be embedded: {first_of(refused)}")
        there = f"; {kept:,} were there already" if kept else ""
        written = f"{outcome.recordings:,} recordings ({outcome.seconds / 3600:,.2f} h)"
        print(f"{written} to {outcome.rows:,} rows of {command.what} in {command.out}{there}")


def load_network(command: Embed) -> "Network":
    from sjepa.device import choose_device
    from sjepa.embed.network import Network, chosen_state, load_encoder
    from sjepa.runs.heads import RunHeads

    device = choose_device(command.device)
    encoder = load_encoder(command.encoder, command.step)
    state, head = chosen_state(command.layer, encoder.config.layers), None
    if command.what != "features":
        head = RunHeads(command.encoder, encoder).cluster_head().to(device)
    return Network(encoder.to(device), state, head, device)


def check_folder(out: Path, settings: dict[str, Any], force: bool) -> None:
    """A folder is new, or holds what the same settings began."""
    if not is_used(out) or force:
        return
    try:
        before = read_json(out / SETTINGS)
    except (OSError, UserError):
        before = None
    if before is None:
        raise UserError(f"{out} exists and is not a folder of `sjepa embed`: choose another --out, or --force")
    changed = [name for name in settings if before.get(name) != settings[name]]
    if changed:
        was = ", ".join(f"{name} was {before.get(name)}, now {settings[name]}" for name in changed)
        raise UserError(f"{out} was made with other settings ({was}): choose another --out, or --force")


def require_pyarrow() -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise UserError("--format parquet needs pyarrow: pip install 'sjepa[corpora]'") from error
