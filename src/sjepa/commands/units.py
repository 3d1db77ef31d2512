"""`sjepa units`: measure how well discrete units agree with phones."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from sjepa.bounds import INDEX, SEED, SIZE
from sjepa.counts import format_count
from sjepa.device import Device
from sjepa.errors import UserError
from sjepa.subcommands import parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sjepa.evaluate.labelled import LabelledUtterance
    from sjepa.evaluate.units import UnitSource
    from sjepa.evaluate.upstream import Upstream


@dataclass(frozen=True)
class Units:
    """Measure how well discrete units agree with phone labels: purity, PNMI and perplexity.

    With --abx or --items, also measure the ABX error of the features.
    """

    encoder: str
    """A run, or an exported or shipped encoder. With --units kmeans, any encoder that `sjepa superb` accepts, such as
    mfcc."""
    data: Path
    """LibriSpeech with phones-SUBSET.jsonl.gz next to it, or a corpus with phones in labels.jsonl."""
    out: Path | None = None
    """Folder for the results. Default: units/ENCODER below RUN/results or runs, with your corpus and the
    options that you changed."""
    subset: str = "dev-clean"
    """Subset of LibriSpeech."""
    alignments: Path | None = None
    """Phones and words with times, for any corpus and language: a folder of TextGrids, CTM files or tables."""
    units: Literal["head", "predictor", "mixture", "kmeans"] = "head"
    """Source of the units: the cluster head at visible frames, with nothing masked; the predictor at masked frames,
    with each frame masked once; the mixture on its own layer; or k-means on any layer."""
    layer: str = "last"
    """Layer that --units kmeans and --items read: a number from 0, or last."""
    clusters: Annotated[int, SIZE] = 100
    """Number of clusters for --units kmeans."""
    codebook: Path | None = None
    """Folder of audio on which --units kmeans fits its clusters. Default: the audio that is scored."""
    frames: Annotated[int, INDEX] = 250_000
    """Number of frames to score, from random whole utterances; 0 uses all. --codebook uses as many."""
    abx: bool = False
    """Also measure the ABX error of the layer that the units read, with fastabx."""
    items: Path | None = None
    """A ZeroSpeech item file. Only its triphone ABX error is measured; --data is the folder of its audio files."""
    step: Annotated[int | None, INDEX] = None
    """Use the checkpoint at this step instead of the newest encoder of a run; see train.keep_every."""
    seed: Annotated[int, SEED] = 0
    """Seed of everything random."""
    device: Device = "auto"
    """Where to run; auto uses a GPU if there is one."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of the encoder: fp32 as in s3prl, or bf16, which is faster on a GPU."""


def run(arguments: list[str]) -> None:
    command = parse(Units, "sjepa units", arguments)
    if command.items is not None:
        check_item_options(command)
        run_items(command)
        return
    check_unit_options(command)
    from sjepa.evaluate.abx import import_fastabx
    from sjepa.evaluate.corpus_hash import hash_corpus
    from sjepa.evaluate.labelled import corpus_suffix, read_labelled
    from sjepa.evaluate.results import results_folder, write_results
    from sjepa.evaluate.upstream import load_upstream
    from sjepa.files import refuse_file
    from sjepa.locks import lock_folder

    if command.out is not None:
        refuse_file(command.out)
    if command.abx:
        import_fastabx()  # fail before the work if it is not installed
    upstream = load_upstream(command.encoder, command.device, command.precision, command.step)
    suffix = corpus_suffix(command.data, command.subset)
    source = make_source(command, upstream)
    corpus = read_labelled(command.data, command.subset, alignments=command.alignments)
    labels = hash_corpus(corpus)
    out = results_folder(command, "units", upstream.name, suffix, upstream.fingerprint, labels)
    with lock_folder(out):
        results = measure(command, upstream, source, corpus) | {"labels": labels}
        write_results(out, results)
    values = ", ".join(f"{name} {value:.3f}" for name, value in results["metrics"].items())
    frames = results["data"]["frames"]
    print(f"{upstream.name}, {command.units} on {frames:,} frames: {values}; results in {out}")


def check_unit_options(command: Units) -> None:
    """Raise UserError for options that do not fit together, before the encoder is loaded."""
    if command.layer == "all":
        raise UserError("--layer all: units come from one layer")
    if command.units == "kmeans":
        return
    if command.layer != "last":
        reader = "the mixture reads its own" if command.units == "mixture" else "the cluster head reads the last"
        raise UserError(f"{reader} layer; --layer is for --units kmeans")
    if command.clusters != Units.clusters:
        raise UserError("--clusters is for --units kmeans: other units have their own number")
    if command.codebook is not None:
        raise UserError("--codebook is for --units kmeans: other units have their own clusters")


def check_item_options(command: Units) -> None:
    """Raise UserError for options that have no effect with --items."""
    for name in ("subset", "alignments", "units", "clusters", "codebook", "frames", "abx"):
        if getattr(command, name) != getattr(Units, name):
            raise UserError(f"--{name} has no effect with --items, which only measures the ABX error: omit it")


def measure(
    command: Units, upstream: "Upstream", source: "UnitSource", corpus: "Sequence[LabelledUtterance]"
) -> dict[str, Any]:
    """Assign units to the frames of the corpus and score them. Return the contents of `results.json`."""
    import numpy as np

    from sjepa.audio.io import SAMPLE_RATE
    from sjepa.evaluate.abx import abx_errors, require_speakers
    from sjepa.evaluate.agreement import measure_agreement
    from sjepa.evaluate.labelled import corpus_name
    from sjepa.evaluate.probing import extract_features
    from sjepa.evaluate.upstream import check_frozen

    if command.abx:
        require_speakers(item.speaker for item in corpus)
    with check_frozen(upstream) as encoder:
        found = extract_features(upstream, corpus, [source.state], command.frames, command.seed, only_framed=True)
        features, scored = [x[0] for x in found.frames], [corpus[i] for i in found.framed]
        units = source.assign([item.utterance for item in scored], features)
    phones = [
        item.frame_phones(len(x), upstream.frame_centres(len(x))) for item, x in zip(scored, features, strict=True)
    ]
    scores = measure_agreement(units, np.concatenate(phones))
    if command.abx:
        speakers = [item.speaker for item in scored]
        scores |= abx_errors(features, phones, speakers, command.seed, SAMPLE_RATE / upstream.stride)
    return {
        "task": "units",
        "corpus": corpus_name(command.data, command.subset),
        "encoder": encoder,
        "precision": upstream.precision,
        "units": {
            "kind": command.units,
            "layer": source.layer,
            "clusters": command.clusters if command.units == "kmeans" else None,
            "codebook": command.codebook.name if command.codebook is not None else None,
        },
        "metrics": scores,
        "data": {"utterances": len(features), "of_utterances": len(corpus), "frames": len(units)},
        "seed": command.seed,
        "requested_frames": command.frames,
        "audio_seconds_per_second": round(found.speed, 1),
    }


def make_source(command: Units, upstream: "Upstream") -> "UnitSource":
    """Make the source of the kind of units that was asked for."""
    from sjepa.evaluate import units
    from sjepa.evaluate.labelled import read_unlabelled
    from sjepa.evaluate.probing import select_states

    match command.units:
        case "head":
            return units.make_head_source(upstream)
        case "predictor":
            return units.make_predictor_source(upstream, Path(command.encoder), command.seed)
        case "mixture":
            return units.make_mixture_source(upstream)
        case "kmeans":
            (state,) = select_states(upstream, command.layer)
            codebook = None if command.codebook is None else read_unlabelled(command.codebook)
            if codebook == []:
                raise UserError(f"there is no audio in {command.codebook}")
            return units.make_kmeans_source(upstream, state, command.clusters, command.seed, codebook, command.frames)


def run_items(command: Units) -> None:
    """Measure triphone ABX on a ZeroSpeech item file."""
    from sjepa.audio.io import SAMPLE_RATE
    from sjepa.evaluate.abx import import_fastabx, item_errors, read_item_files
    from sjepa.evaluate.probe_names import state_name
    from sjepa.evaluate.probing import extract_features, select_states
    from sjepa.evaluate.results import results_folder, write_results
    from sjepa.evaluate.upstream import check_frozen, load_upstream
    from sjepa.locks import lock_folder

    assert command.items is not None
    names = read_item_files(command.items)
    corpus = find_item_audio(command.items, names, command.data)
    import_fastabx()  # fail before the work if it is not installed
    upstream = load_upstream(command.encoder, command.device, command.precision, command.step)
    out = results_folder(command, "abx", upstream.name, command.items.stem, upstream.fingerprint)
    states = select_states(upstream, command.layer)
    if len(states) != 1:
        raise UserError("--layer all: ABX is measured on one layer")
    layer = state_name(states[0], upstream.states)
    with lock_folder(out):
        with check_frozen(upstream) as encoder:
            found = extract_features(upstream, corpus, states, 0, command.seed, only_framed=True)
        features = {names[i]: x[0] for i, x in zip(found.framed, found.frames, strict=True)}
        scores = item_errors(command.items, features, command.seed, SAMPLE_RATE / upstream.stride)
        results = {
            "task": "units",
            "corpus": f"ABX items {command.items.name}",
            "encoder": encoder,
            "precision": upstream.precision,
            "units": {"kind": "features", "layer": layer, "clusters": None},
            "metrics": scores,
            "data": {"utterances": len(names), "of_utterances": len(names)},
            "seed": command.seed,
            "audio_seconds_per_second": round(found.speed, 1),
        }
        write_results(out, results)
    values = ", ".join(f"{name} {value:.2f}" for name, value in scores.items())
    files = f"{format_count(len(names), 'file')} of {command.items.name}"
    print(f"{upstream.name}, {layer}, {files}: {values}; results in {out}")


def find_item_audio(items: Path, names: list[str], folder: Path) -> list["LabelledUtterance"]:
    """Return the audio files that an item file names. Raise UserError if one is missing or there are two of a name."""
    from sjepa.audio.io import show_path
    from sjepa.evaluate.labelled import read_unlabelled

    audio: dict[str, LabelledUtterance] = {}
    for found in read_unlabelled(folder):
        first = audio.setdefault(found.utterance.name, found)
        if first is not found and found.utterance.name in names:
            both = f"{show_path(first.utterance.path)} and {show_path(found.utterance.path)}"
            raise UserError(f"{items} names {found.utterance.name}, which may be {both}: keep one of them in --data")
    missing = [name for name in names if name not in audio]
    if missing:
        raise UserError(f"{items} names {missing[0]} and {len(missing) - 1} more that are not in {folder}")
    return [audio[name] for name in names]
