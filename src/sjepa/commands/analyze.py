"""`sjepa analyze SUBJECT`: figures of a run, as JSON, SVG and PNG."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from sjepa.bounds import COUNT, INDEX, LENGTH, SEED, START
from sjepa.errors import UserError
from sjepa.locks import lock_folder
from sjepa.runs.folder import RunFolder
from sjepa.subcommands import choose, parse

Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class Subject:
    """Options of every subject."""

    run: Annotated[Path, tyro.conf.Positional]
    """Directory of the run."""
    out: Path | None = None
    """Folder of the results; RUN/analysis by default, where `sjepa report` finds them."""
    redraw: bool = False
    """Only draw what was found before."""
    force: bool = False
    """Replace a result that was made from other data or settings."""


@dataclass(frozen=True)
class Computed(Subject):
    """Options of subjects that can run the encoder."""

    device: Device = "auto"
    """Where to run; auto takes a GPU where there is one."""
    step: Annotated[int | None, INDEX] = None
    """The checkpoint of this step in place of the newest; results then go to RUN/analysis/step-N."""


@dataclass(frozen=True)
class Entropy(Computed):
    """Per-frame entropy of the head at visible frames, of the predictor at masked ones, and of their target."""

    data: str | None = None
    """Audio that the run did not train on: a folder, an index or shards."""
    utterances: Annotated[int, COUNT] = 500
    """How many to read, at random."""
    seed: Annotated[int, SEED] = 0
    """All randomness follows from it."""


@dataclass(frozen=True)
class Utterance(Computed):
    """The paper's figure for any utterance: spectrogram, labels, clusters, posteriors and entropy over time."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Audio files; without any, some utterances of --data."""
    data: Path | None = None
    """A corpus: LibriSpeech with its phones, a synthetic corpus, or a folder of audio without labels."""
    subset: str = "dev-clean"
    """Subset of LibriSpeech."""
    alignments: Path | None = None
    """Words and phones with times, for any corpus: a folder of TextGrids, CTM files or tables."""
    count: Annotated[int, COUNT] = 6
    """Utterances of --data where no file is named."""
    start: Annotated[float, START] = 0.0
    """Second at which to begin."""
    seconds: Annotated[float, LENGTH] = 20.0
    """Longest stretch of a file."""
    seed: Annotated[int, SEED] = 0
    """Of the passes in which frames are masked."""


@dataclass(frozen=True)
class Erank(Computed):
    """Effective rank of every layer over training; with --data its calibration by a CTC head on each layer."""

    data: Path | None = None
    """A labelled corpus for the calibration: LibriSpeech with its phones, or a synthetic corpus."""
    subset: str = "dev-clean"
    """Subset of LibriSpeech."""
    labels: Literal["phones", "words"] = "phones"
    """What the heads write; words train a recurrent head, better on a GPU."""
    steps: Annotated[int, COUNT] = 1000
    """Training steps of the heads."""
    seed: Annotated[int, SEED] = 0
    """All randomness follows from it."""


@dataclass(frozen=True)
class Pareto(Subject):
    """Parameters against WER and emotion accuracy: reported systems, and ours by the full protocol."""

    results: tuple[Path, ...] = ()
    """Further folders with results.json at any depth, besides the run's own."""


@dataclass(frozen=True)
class Clusters(Computed):
    """How full each component is over training, which die and are born; with --data the phones that each holds."""

    data: Path | None = None
    """A labelled corpus: LibriSpeech with its phones, or a synthetic corpus."""
    subset: str = "dev-clean"
    """Subset of LibriSpeech."""
    utterances: Annotated[int, COUNT] = 500
    """How many to read, evenly spaced."""


@dataclass(frozen=True)
class Progress(Subject):
    """Error rates and probes over training, from evaluations with --step; with --data every checkpoint is probed."""

    data: Path | None = None
    """A corpus to probe every checkpoint on, as `sjepa probe` takes it."""
    subset: str = "dev-clean"
    """Subset of LibriSpeech."""
    alignments: Path | None = None
    """Phones with times: a folder of TextGrids, CTM files or tables."""
    frames: Annotated[int, INDEX] = 25_000
    """Frames for the phone probes, from whole utterances at random; 0 takes all."""
    results: tuple[Path, ...] = ()
    """Further folders with results.json at any depth, besides the run's own."""
    seed: Annotated[int, SEED] = 0
    """All randomness follows from it."""
    device: Device = "auto"
    """Where to run; auto takes a GPU where there is one."""


def entropy(command: Entropy, out: Path) -> None:
    from sjepa.analysis import style
    from sjepa.analysis.entropy import analyse_entropy, describe_modes, draw_entropy
    from sjepa.analysis.restored_run import RestoredRun

    if command.redraw:
        return style.redraw(out / "entropy.json", draw_entropy)
    if command.data is None:
        raise UserError("--data: which audio? A folder, an index or shards, best what the run did not train on")
    made_from = {"data": style.absolute_path(command.data), "utterances": command.utterances, "seed": command.seed}
    style.refuse_replacing(out / "entropy.json", made_from, command.force)
    run = RestoredRun(command.run, command.device, command.step, command.seed)
    found = analyse_entropy(run, command.data, command.utterances, command.seed)
    style.save_findings(found, out, "entropy", draw_entropy)
    for curve in found["distributions"].values():
        shares = ", ".join(f"{share:.1%} above {mark}" for mark, share in curve["above"].items())
        print(f"{curve['label']}: mean {curve['mean']:.2f} bits; {shares}; {describe_modes(curve['modality'])}")
    return print(found["answer"])


def utterance(command: Utterance, out: Path) -> None:
    from sjepa.analysis import style
    from sjepa.analysis.restored_run import RestoredRun
    from sjepa.analysis.speech import choose_files, read_speech
    from sjepa.analysis.utterance import analyse_utterance, draw_utterance, file_stem, utterance_inputs
    from sjepa.progress import track

    if command.redraw:
        for path in sorted(out.glob("utterance-*.json")):
            style.redraw(path, draw_utterance)
        return
    if command.data is not None and command.data.is_file():
        raise UserError(
            f"--data {command.data} is a file, and --data is a corpus: name files without --data, "
            f"as in sjepa analyze utterance {command.run} {command.data}"
        )
    chosen = choose_files(command.data, list(command.files), command.count, command.subset, command.alignments)
    for path, label in chosen:
        made_from = utterance_inputs(path, command.start, command.seconds, command.seed)
        style.refuse_replacing(out / f"{file_stem(path, label)}.json", made_from, command.force)
    run = RestoredRun(command.run, command.device, command.step, command.seed)
    for path, label in track(chosen, "Utterances", len(chosen)):
        found = analyse_utterance(run, read_speech(path, label, command.start, command.seconds), command.seconds)
        style.save_findings(found, out, file_stem(path, label), draw_utterance)


def erank(command: Erank, out: Path) -> None:
    from sjepa.analysis import style
    from sjepa.analysis.calibration import calibrate
    from sjepa.analysis.erank import analyse_erank, draw_erank

    if command.redraw:
        return style.redraw(out / "erank.json", draw_erank)
    found, past = analyse_erank(command.run), {}
    if (out / "erank.json").is_file():
        past = style.load_findings(out / "erank.json")
    if command.data is not None:
        made_from = {
            "data": style.absolute_path(command.data),
            "subset": command.subset,
            "labels": command.labels,
            "steps": command.steps,
            "seed": command.seed,
        }
        if past.get("calibration"):
            style.refuse_replacing(out / "erank.json", made_from, command.force)
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
            print(f"layer {layer}: effective rank {rank:.1f}, {calibration['metric']} {score:.1f} %")
        print(f"rank correlation {calibration['spearman']:+.2f}, p = {calibration['p']:.2g} (one-sided)")
    else:  # a calibration takes long and is not thrown away
        found |= {name: past[name] for name in ("calibration", "made_from") if past.get(name)}
    style.save_findings(found, out, "erank", draw_erank)
    return None


def pareto(command: Pareto, out: Path) -> None:
    from sjepa.analysis import style
    from sjepa.analysis.pareto import analyse_pareto, draw_pareto

    if command.redraw:
        return style.redraw(out / "pareto.json", draw_pareto)
    for folder in (command.run, *command.results):
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}")
    made_from = {"results": [style.absolute_path(folder) for folder in (command.run, *command.results)]}
    style.refuse_replacing(out / "pareto.json", made_from, command.force)
    found = analyse_pareto([command.run, *command.results]) | {"made_from": made_from}
    style.save_findings(found, out, "pareto", draw_pareto)
    if not found["ours"]:
        print(
            f"no SUPERB result of ours yet: "
            f"sjepa superb asr --encoder {command.run} --data LibriSpeech --out {RunFolder(command.run).results}/asr"
        )
    for kind in found["not_comparable"]:
        print(f"left out, because it does not compare with what others reported: {kind}")
    return None


def clusters(command: Clusters, out: Path) -> None:
    from sjepa.analysis import style
    from sjepa.analysis.clusters import analyse_clusters, analyse_phones, corpus_inputs, draw_clusters
    from sjepa.analysis.restored_run import RestoredRun
    from sjepa.evaluate.labelled import read_labelled

    if command.redraw:
        return style.redraw(out / "clusters.json", draw_clusters)
    found = analyse_clusters(command.run)
    if found["missing"]:
        print(found["missing"])
    past = style.load_findings(out / "clusters.json") if (out / "clusters.json").is_file() else {}
    if command.data is None:  # what was found of phones stays
        found |= {name: past[name] for name in ("phones", "made_from") if past.get(name)}
    else:
        made_from = corpus_inputs(command.data, command.subset, command.utterances)
        if past.get("phones"):
            style.refuse_replacing(out / "clusters.json", made_from, command.force)
        found["made_from"] = made_from
        corpus = read_labelled(command.data, command.subset)
        found["phones"] = analyse_phones(
            RestoredRun(command.run, command.device, step=command.step), corpus, command.utterances
        )
        values = ", ".join(f"{name} {value:.3f}" for name, value in found["phones"]["agreement"].items())
        print(f"targets against phones on {found['phones']['frames']:,} frames: {values}")
    style.save_findings(found, out, "clusters", draw_clusters)
    return None


def progress(command: Progress, out: Path) -> None:
    from sjepa.analysis import style
    from sjepa.analysis.progress import analyse_progress, draw_progress, probe_checkpoints

    if command.redraw:
        return draw_progress(style.load_findings(out / "progress.json"), out / "progress")
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
    made_from = {"results": [style.absolute_path(folder) for folder in command.results]}
    style.refuse_replacing(out / "progress.json", made_from, command.force)
    found = analyse_progress(command.run, command.results) | {"made_from": made_from}
    style.save_findings(found, out, "progress", draw_progress)
    for curve in found["curves"]:
        steps = ", ".join(f"{value:.1f} at step {step:,}" for step, value in curve["points"])
        print(f"{curve['name']}: {steps}")
    return None


SUBJECTS: dict[str, tuple[type[Any], Callable[[Any, Path], None], str]] = {
    "entropy": (Entropy, entropy, "how sure head, predictor and target are, frame by frame"),
    "utterance": (Utterance, utterance, "an utterance frame by frame, as in the paper's figure"),
    "erank": (Erank, erank, "effective rank of every layer over training, and its calibration"),
    "pareto": (Pareto, pareto, "size against WER and emotion accuracy, reported systems and ours"),
    "progress": (Progress, progress, "error rates and probes over training, from its checkpoints"),
    "clusters": (Clusters, clusters, "occupancy of the components, dead and born, and their phones"),
}


def run(arguments: list[str]) -> None:
    subject = choose("sjepa analyze", "subject", {name: what for name, (_, _, what) in SUBJECTS.items()}, arguments)
    if subject is None:
        return
    kind, work, _ = SUBJECTS[subject]
    command = parse(kind, f"sjepa analyze {subject}", arguments[1:])
    if not command.run.is_dir():
        raise UserError(f"there is no run {command.run}")
    step = getattr(command, "step", None)
    out = command.out or RunFolder(command.run).analysis / (f"step-{step}" if step is not None else "")
    with lock_folder(out):
        work(command, out)
    print(f"written to {out}")
