"""`sjepa analyze SUBJECT`: analyse a run, and write the findings as JSON, SVG and PNG."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from sjepa.analysis import style
from sjepa.analysis.style import Findings
from sjepa.bounds import COUNT, INDEX, LENGTH, SEED, START
from sjepa.device import Device
from sjepa.errors import UserError
from sjepa.files import require_folder
from sjepa.locks import lock_folder
from sjepa.runs.folder import RunFolder
from sjepa.subcommands import choose, parse

Named = Iterator[tuple[str, Findings]]
"""Findings, each with the name of its files. `run` saves and draws them one by one."""


@dataclass(frozen=True)
class Subject:
    """Options of every subject."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    out: Path | None = None
    """Folder for the findings. Default: RUN/analysis, where `sjepa report` reads them."""
    redraw: bool = False
    """Compute nothing; draw the saved findings again."""
    force: bool = False
    """Replace findings that were made from other data or settings."""


@dataclass(frozen=True)
class EncoderSubject(Subject):
    """Options of subjects that can run the encoder."""

    device: Device = "auto"
    """Where to run; auto uses a GPU if there is one."""
    step: Annotated[int | None, INDEX] = None
    """Use the checkpoint at this step instead of the newest encoder of a run; see train.keep_every. Findings go to
    RUN/analysis/step-N."""


@dataclass(frozen=True)
class Entropy(EncoderSubject):
    """Measure the entropy of every frame: cluster head at visible frames, predictor at masked frames, and targets.

    The result shows whether the targets themselves are soft, or only the predictions.
    """

    data: str | None = None
    """Audio that the run was not trained on: a folder, an index or shards."""
    utterances: Annotated[int, COUNT] = 500
    """Number of utterances, drawn at random."""
    seed: Annotated[int, SEED] = 0
    """Seed of everything random."""


@dataclass(frozen=True)
class Utterance(EncoderSubject):
    """Draw the paper's figure for any utterance: spectrogram, labels, clusters, posteriors and entropy over time."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Audio files. Default: some utterances of --data."""
    data: Path | None = None
    """A corpus: LibriSpeech with phone labels, a corpus with labels.jsonl, or a folder of audio without labels."""
    subset: str = "dev-clean"
    """Subset of LibriSpeech."""
    alignments: Path | None = None
    """Phones and words with times, for any corpus and language: a folder of TextGrids, CTM files or tables."""
    count: Annotated[int, COUNT] = 6
    """Number of utterances of --data if no file is given."""
    start: Annotated[float, START] = 0.0
    """Start in each file, in seconds."""
    seconds: Annotated[float, LENGTH] = 20.0
    """Longest stretch of a file, in seconds."""
    seed: Annotated[int, SEED] = 0
    """Seed of the passes that mask frames."""


@dataclass(frozen=True)
class Erank(EncoderSubject):
    """Draw the effective rank of every layer over training.

    With --data, a CTC head is trained on each layer, to check whether layers of high rank are better layers.
    """

    data: Path | None = None
    """A labelled corpus for the check: LibriSpeech with phone labels, or a corpus with labels.jsonl."""
    subset: str = "dev-clean"
    """Subset of LibriSpeech."""
    labels: Literal["phones", "words"] = "phones"
    """What the heads recognise. For words the head is recurrent and needs a GPU to be fast."""
    steps: Annotated[int, COUNT] = 1000
    """Training steps of the heads."""
    seed: Annotated[int, SEED] = 0
    """Seed of everything random."""


@dataclass(frozen=True)
class Pareto(Subject):
    """Plot parameters against WER and emotion accuracy: reported systems, and our results under the full protocol."""

    results: tuple[Path, ...] = ()
    """More folders to search for results.json, at any depth. The run's own results are always included."""


@dataclass(frozen=True)
class Clusters(EncoderSubject):
    """Show the share of frames of each component over training, and which components die or revive.

    With --data, also show which phones each component holds.
    """

    data: Path | None = None
    """A labelled corpus: LibriSpeech with phone labels, or a corpus with labels.jsonl."""
    subset: str = "dev-clean"
    """Subset of LibriSpeech."""
    utterances: Annotated[int, COUNT] = 500
    """Number of utterances, evenly spaced over the corpus."""


@dataclass(frozen=True)
class Progress(Subject):
    """Draw error rates and probes over training, from evaluations with --step.

    With --data, the command first probes every checkpoint.
    """

    data: Path | None = None
    """A corpus to probe every checkpoint on, in any form that `sjepa probe` accepts."""
    subset: str = "dev-clean"
    """Subset of LibriSpeech."""
    alignments: Path | None = None
    """Phones and words with times, for any corpus and language: a folder of TextGrids, CTM files or tables."""
    frames: Annotated[int, INDEX] = 25_000
    """Frames for the phone probes, from random whole utterances; 0 uses all."""
    results: tuple[Path, ...] = ()
    """More folders to search for results.json, at any depth. The run's own results are always included."""
    seed: Annotated[int, SEED] = 0
    """Seed of everything random."""
    device: Device = "auto"
    """Where to run; auto uses a GPU if there is one."""


def compute_entropy(command: Entropy, out: Path) -> Named:
    from sjepa.analysis.entropy import analyse_entropy, describe_modes, entropy_inputs
    from sjepa.analysis.restored_run import RestoredRun

    if command.data is None:
        raise UserError("give audio with --data: a folder, an index or shards that the run was not trained on")
    made_from = entropy_inputs(command.data, command.utterances, command.seed, command.step)
    style.refuse_replacing(style.findings_file(out, "entropy"), made_from, command.force)
    run = RestoredRun(command.run, command.device, command.step, command.seed)
    found = analyse_entropy(run, command.data, command.utterances, command.seed)
    yield "entropy", found
    for curve in found["distributions"].values():
        shares = ", ".join(f"{share:.1%} above {mark}" for mark, share in curve["above"].items())
        print(f"{curve['label']}: mean {curve['mean']:.2f} bits; {shares}; {describe_modes(curve['modality'])}")
    print(found["answer"])


def compute_utterances(command: Utterance, out: Path) -> Named:
    from sjepa.analysis.restored_run import RestoredRun
    from sjepa.analysis.speech import Speech, find_utterances, read_speech, read_usable
    from sjepa.analysis.utterance import analyse_utterance, file_stem, utterance_inputs
    from sjepa.evaluate.labelled import LabelledUtterance

    if command.data is not None and command.data.is_file():
        raise UserError(
            f"--data {command.data} is a file, but --data takes a corpus: give files without --data, "
            f"as in sjepa analyze utterance {command.run} {command.data}"
        )
    chosen = find_utterances(command.data, list(command.files), command.count, command.subset, command.alignments)
    for item in chosen:
        made_from = utterance_inputs(item.utterance, command.start, command.seconds, command.seed, command.step)
        style.refuse_replacing(style.findings_file(out, file_stem(item.utterance)), made_from, command.force)
    run = RestoredRun(command.run, command.device, command.step, command.seed)

    def read(item: LabelledUtterance) -> Speech:
        return read_speech(item, command.start, command.seconds)

    # A file that the user names must be usable. Of a sample, damaged files are left out.
    for item, speech in read_usable(chosen, read, "Utterances", strict=bool(command.files)):
        yield file_stem(item.utterance), analyse_utterance(run, speech, command.seconds)


def compute_erank(command: Erank, out: Path) -> Named:
    from sjepa.analysis.erank import analyse_erank

    file = style.findings_file(out, "erank")
    found = analyse_erank(command.run)
    earlier = read_earlier(file, "calibration")
    if command.data is None:
        found |= earlier
    else:
        from sjepa.analysis.calibration import calibrate

        made_from = {
            "data": style.absolute_path(command.data),
            "subset": command.subset,
            "labels": command.labels,
            "steps": command.steps,
            "seed": command.seed,
            "step": command.step,
        }
        if "calibration" in earlier:
            style.refuse_replacing(file, made_from, command.force)
        found["made_from"] = made_from
        found["calibration"] = calibration = calibrate(
            command.run,
            command.data,
            subset=command.subset,
            labels=command.labels,
            steps=command.steps,
            seed=command.seed,
            device=command.device,
            step=command.step,
        )
        measured = zip(calibration["effective_ranks"], calibration["scores"], strict=True)
        for layer, (rank, score) in enumerate(measured):
            print(f"layer {layer}: effective rank {rank:.1f}, {calibration['metric']} {score:.1f}%")
        print(f"rank correlation {calibration['spearman']:+.2f}, p = {calibration['p']:.2g} (one-sided)")
    yield "erank", found


def compute_pareto(command: Pareto, out: Path) -> Named:
    from sjepa.analysis.pareto import analyse_pareto
    from sjepa.evaluate.results import find_results

    for folder in (command.run, *command.results):
        require_folder(folder)
    made_from = {"results": [style.absolute_path(folder) for folder in (command.run, *command.results)]}
    style.refuse_replacing(style.findings_file(out, "pareto"), made_from, command.force)
    found = analyse_pareto(find_results([command.run, *command.results])) | {"made_from": made_from}
    yield "pareto", found
    if not found["ours"]:
        print(
            f"No SUPERB results of our own yet. To get one: "
            f"sjepa superb asr --encoder {command.run} --data LibriSpeech --out {RunFolder(command.run).results}/asr"
        )
    for kind in found["not_comparable"]:
        print(f"Left out, because it is not comparable with reported results: {kind}")


def compute_clusters(command: Clusters, out: Path) -> Named:
    from sjepa.analysis.clusters import analyse_clusters, analyse_phones, corpus_inputs

    file = style.findings_file(out, "clusters")
    found = analyse_clusters(command.run)
    if found["missing"]:
        print(found["missing"])
    earlier = read_earlier(file, "phones")
    if command.data is None:
        found |= earlier
    else:
        from sjepa.analysis.restored_run import RestoredRun
        from sjepa.evaluate.labelled import read_labelled

        made_from = corpus_inputs(command.data, command.subset, command.utterances, command.step)
        if "phones" in earlier:
            style.refuse_replacing(file, made_from, command.force)
        found["made_from"] = made_from
        corpus = read_labelled(command.data, command.subset)
        run = RestoredRun(command.run, command.device, step=command.step)
        found["phones"] = phones = analyse_phones(run, corpus, command.utterances)
        values = ", ".join(f"{name} {value:.3f}" for name, value in phones["agreement"].items())
        print(f"Targets against phones on {phones['frames']:,} frames: {values}")
    yield "clusters", found


def compute_progress(command: Progress, out: Path) -> Named:
    from sjepa.analysis.progress import analyse_progress, name_curves, probe_checkpoints

    made_from = {"results": [style.absolute_path(folder) for folder in command.results]}
    style.refuse_replacing(style.findings_file(out, "progress"), made_from, command.force)
    if command.data is not None:
        probe_checkpoints(
            command.run,
            command.data,
            subset=command.subset,
            alignments=command.alignments,
            frames=command.frames,
            seed=command.seed,
            device=command.device,
        )
    found = analyse_progress(command.run, command.results) | {"made_from": made_from}
    yield "progress", found
    for curve, name in zip(found["curves"], name_curves(found["curves"]), strict=True):
        steps = ", ".join(f"{value:.1f} at step {step:,}" for step, value in curve["points"])
        print(f"{name}: {steps}")


def read_earlier(file: Path, part: str) -> Findings:
    """Return the part of earlier findings that was computed from --data, and what it was made from."""
    past = style.load_findings(file) if file.is_file() else {}
    return {name: past[name] for name in (part, "made_from") if past.get(name)}


# Each subject has a module of its name in sjepa.analysis, with a function draw_SUBJECT.
SUBJECTS: dict[str, tuple[type[Any], Callable[[Any, Path], Named], str]] = {
    "entropy": (Entropy, compute_entropy, "entropy of every frame: cluster head, predictor and target"),
    "utterance": (Utterance, compute_utterances, "an utterance frame by frame, as in the paper's figure"),
    "erank": (Erank, compute_erank, "effective rank of every layer over training, and whether it finds the best layer"),
    "pareto": (Pareto, compute_pareto, "size against WER and emotion accuracy, for reported systems and ours"),
    "progress": (Progress, compute_progress, "error rates and probes over training, from the checkpoints"),
    "clusters": (Clusters, compute_clusters, "share of frames of each component, dead components, and their phones"),
}


def run(arguments: list[str]) -> None:
    subject = choose("sjepa analyze", "subject", {name: what for name, (_, _, what) in SUBJECTS.items()}, arguments)
    if subject is None:
        return
    kind, compute, _ = SUBJECTS[subject]
    command = parse(kind, f"sjepa analyze {subject}", arguments[1:])
    if not command.run.is_dir():
        raise UserError(f"there is no run {command.run}")
    style.require_matplotlib()
    draw = getattr(import_module(f"sjepa.analysis.{subject}"), f"draw_{subject}")
    step = getattr(command, "step", None)
    out = command.out or RunFolder(command.run).analysis / (f"step-{step}" if step is not None else "")
    with lock_folder(out):
        if command.redraw:
            for file in style.utterance_files(out) if subject == "utterance" else [style.findings_file(out, subject)]:
                style.redraw(file, draw)
        else:
            for name, found in compute(command, out):
                style.save_findings(found, out, name, draw)
    print(f"Written to {out}")
