"""`sjepa units`: measure how well discrete units agree with phones."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from sjepa.bounds import INDEX, SEED, SIZE
from sjepa.subcommands import parse


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
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run; auto uses a GPU if there is one."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of the encoder: fp32 as in s3prl, or bf16, which is faster on a GPU."""


def run(arguments: list[str]) -> None:
    command = parse(Units, "sjepa units", arguments)
    from functools import partial

    import numpy as np

    from sjepa.audio.io import SAMPLE_RATE
    from sjepa.errors import UserError
    from sjepa.evaluate.abx import abx_errors, import_fastabx
    from sjepa.evaluate.agreement import measure_agreement
    from sjepa.evaluate.labelled import corpus_name, corpus_suffix, read_labelled, read_unlabelled
    from sjepa.evaluate.probe_names import state_name
    from sjepa.evaluate.probing import extract_features, select_states
    from sjepa.evaluate.results import results_folder, write_results
    from sjepa.evaluate.units import HeadUnits, PredictorUnits, kmeans_units, mixture_units, require_clusters
    from sjepa.evaluate.upstream import check_frozen, load_upstream
    from sjepa.locks import lock_folder
    from sjepa.progress import track

    if command.items is not None:
        run_items(command)
        return
    if command.abx:
        import_fastabx()  # fail before the work if it is not installed
    upstream = load_upstream(command.encoder, command.device, command.precision, command.step)
    out = results_folder(command, "units", upstream.name, corpus_suffix(command.data, command.subset))
    with lock_folder(out):
        if command.layer == "all":
            raise UserError("--layer all: units come from one layer")
        if command.units == "mixture" and command.layer != "last":
            raise UserError("the mixture reads its own layer; --layer is for --units kmeans")
        if command.units != "kmeans" and command.layer != "last":
            raise UserError("the cluster head reads the last layer; --layer is for --units kmeans")
        if command.units != "kmeans" and command.clusters != Units.clusters:
            raise UserError("--clusters is for --units kmeans: other units have their own number")
        if command.units != "kmeans" and command.codebook is not None:
            raise UserError("--codebook is for --units kmeans: other units have their own clusters")
        head = HeadUnits(upstream) if command.units == "head" else None
        clusters = require_clusters(upstream) if command.units == "mixture" else None
        predictor = None
        if command.units == "predictor":
            predictor = PredictorUnits(Path(command.encoder), upstream, command.seed)
        corpus = read_labelled(command.data, command.subset, alignments=command.alignments)
        codebook_corpus = None if command.codebook is None else read_unlabelled(command.codebook)
        if codebook_corpus == []:
            raise UserError(f"there is no audio in {command.codebook}")
        states = select_states(upstream, command.layer)
        if clusters is not None and clusters.state is not None:
            states = [clusters.state]
        extract = partial(
            extract_features, upstream, states=states, frames=command.frames, seed=command.seed, means=False
        )
        with check_frozen(upstream) as encoder:
            found = extract(corpus)
            codebook_features = None if codebook_corpus is None else [x[0] for x in extract(codebook_corpus).frames]
        features = [x[0] for x in found.frames]
        phones = [
            corpus[i].frame_phones(len(x), upstream.frame_centres(len(x)))
            for i, x in zip(found.framed, features, strict=True)
        ]
        if head is not None:
            units = head(features)
        elif predictor is not None:
            framed = track(found.framed, "Masked frames", len(found.framed))
            units = np.concatenate([predictor(corpus[i].utterance.read()) for i in framed])
        elif clusters is not None:
            units = mixture_units(clusters, (corpus[i].utterance for i in found.framed), features, upstream.device)
        else:
            units = kmeans_units(features, command.clusters, command.seed, upstream.device, codebook_features)
        scores = measure_agreement(units, np.concatenate(phones))
        if command.abx:
            scores |= abx_errors(
                features, phones, [corpus[i].speaker for i in found.framed], command.seed, SAMPLE_RATE / upstream.stride
            )
        total = sum(map(len, features))
        results = {
            "task": "units",
            "corpus": corpus_name(command.data, command.subset),
            "encoder": encoder,
            "precision": upstream.precision,
            "units": {
                "kind": command.units,
                "layer": clusters.info.targets
                if clusters and clusters.state is None
                else state_name(states[0], upstream.states),
                "clusters": command.clusters if command.units == "kmeans" else None,
                "codebook": command.codebook.name if command.codebook is not None else None,
            },
            "metrics": scores,
            "data": {"utterances": len(features), "of_utterances": len(corpus), "frames": total},
            "seed": command.seed,
            "audio_seconds_per_second": round(found.speed, 1),
        }
        write_results(out, results)
        values = ", ".join(f"{name} {value:.3f}" for name, value in scores.items())
        print(f"{upstream.name}, {command.units} on {total:,} frames: {values}; results in {out}")


def run_items(command: Units) -> None:
    """Measure triphone ABX on a ZeroSpeech item file."""
    from sjepa.audio.io import SAMPLE_RATE
    from sjepa.errors import UserError
    from sjepa.evaluate.abx import import_fastabx, item_errors, read_item_files
    from sjepa.evaluate.labelled import read_unlabelled
    from sjepa.evaluate.probe_names import state_name
    from sjepa.evaluate.probing import extract_features, select_states
    from sjepa.evaluate.results import results_folder, write_results
    from sjepa.evaluate.upstream import check_frozen, load_upstream
    from sjepa.locks import lock_folder

    assert command.items is not None
    names = read_item_files(command.items)
    audio = {found.utterance.name: found for found in read_unlabelled(command.data)}
    missing = [name for name in names if name not in audio]
    if missing:
        raise UserError(
            f"{command.items} names {missing[0]} and {len(missing) - 1} more that are not in {command.data}"
        )
    import_fastabx()  # fail before the work if it is not installed
    upstream = load_upstream(command.encoder, command.device, command.precision, command.step)
    out = results_folder(command, "abx", upstream.name, command.items.stem)
    states = select_states(upstream, command.layer)
    if len(states) != 1:
        raise UserError("--layer all: ABX is measured on one layer")
    corpus = [audio[name] for name in names]
    with check_frozen(upstream) as encoder:
        found = extract_features(upstream, corpus, states, 0, command.seed, means=False)
    features = {names[i]: x[0] for i, x in zip(found.framed, found.frames, strict=True)}
    scores = item_errors(command.items, features, command.seed, SAMPLE_RATE / upstream.stride)
    layer = state_name(states[0], upstream.states)
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
    with lock_folder(out):
        write_results(out, results)
    values = ", ".join(f"{name} {value:.2f}" for name, value in scores.items())
    print(f"{upstream.name}, {layer}, {len(names):,} files of {command.items.name}: {values}; results in {out}")
