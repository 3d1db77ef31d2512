"""`sjepa superb`: a SUPERB task on a frozen encoder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from sjepa.bounds import COUNT, GIGABYTES, INDEX, LEARNING_RATE, POSITIVE, SEED
from sjepa.errors import UserError
from sjepa.evaluate.superb import TaskName
from sjepa.subcommands import parse


@dataclass(frozen=True)
class Superb:
    """Train a SUPERB head on a frozen encoder, select on dev, report on test.

    docs/evaluate.md lists the tasks with their corpora, heads and scores. Run the same command again to continue.
    """

    task: Annotated[TaskName, tyro.conf.Positional]
    """Which task."""
    encoder: str
    """A run, an encoder folder, a Hugging Face speech encoder (HuBERT, WavLM, wav2vec 2.0, data2vec-audio, UniSpeech,
    Whisper), s3prl:NAME, MODULE:FUNCTION, untrained:PATH, mfcc or logmel."""
    data: Path
    """The task's corpus in its own layout. asr, classify and tag take any corpus that `sjepa index` reads, or an
    index."""
    out: Path | None = None
    """Folder of the results; by default superb/ENCODER/TASK, or TASK-lite, in RUN/results or in runs."""
    lite: bool = False
    """The reduced protocol for small machines and small data: fewer steps, less data, a narrower recurrent head."""
    steps: Annotated[int | None, COUNT] = None
    """Optimizer steps of the lite protocol."""
    subset: str = "dev-clean"
    """asr and pr with --lite: a subset of LibriSpeech, which is split by speaker."""
    lr: Annotated[float | None, LEARNING_RATE] = None
    """Learning rate in place of the task's default."""
    label: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """classify: the column of the classes, several times for several columns that must all be right; tag: the column
    with a tag for each word."""
    hours: Annotated[float | None, POSITIVE] = None
    """Hours of the training part, drawn at random by the seed; dev and test stay whole."""
    minutes: Annotated[float | None, POSITIVE] = None
    """The same in minutes."""
    sweep: bool = False
    """Try the learning rates 1e-1 to 1e-7 and keep the one that is best on dev."""
    step: Annotated[int | None, INDEX] = None
    """The checkpoint of a run at this step in place of its newest encoder; train.keep_every keeps such checkpoints."""
    seed: Annotated[int, SEED] = 0
    """All randomness follows from it."""
    lexicon: tyro.conf.UseAppendAction[tuple[Path, ...]] = ()
    """pr: pronunciations, a word and its phones per line; give it several times to merge lexicons. asr with a KenLM
    binary: its words."""
    language_model: Path | None = None
    """asr: an ARPA or KenLM binary file; test is then decoded with it too, in the paper's and the board's settings."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run; auto takes a GPU where there is one."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """In which the encoder computes: fp32 as s3prl does, or bf16, which is faster on a GPU."""
    cache_gb: Annotated[float | None, GIGABYTES] = None
    """GB of features that need not be computed again. Default: 4 on a CPU, half of the free memory on a GPU."""


def run(arguments: list[str]) -> None:
    # `--task ravdess` reads as `ravdess`.
    plain = [argument.removeprefix("--task=") for argument in arguments if argument != "--task"]
    command = parse(Superb, "sjepa superb", plain)
    if command.sweep and command.lr is not None:
        raise UserError("--sweep chooses the learning rate; leave --lr out")
    hours = training_hours(command)
    from sjepa.evaluate.results import results_root
    from sjepa.evaluate.superb.decode import BOARD, PAPER, BeamDecoder, LanguageModel
    from sjepa.evaluate.superb.own import OwnData, limit_training
    from sjepa.evaluate.superb.protocol import in_words
    from sjepa.evaluate.superb.tasks import all_entries, find_entry, make_task
    from sjepa.evaluate.superb.text import Characters
    from sjepa.evaluate.upstream import load_upstream
    from sjepa.files import refuse_file
    from sjepa.locks import lock_folder
    from sjepa.progress import say

    entry = find_entry(command.task)
    if command.language_model is not None and not entry.language_model:
        raise UserError(f"--language-model is for {', '.join(e.name for e in all_entries() if e.language_model)}")
    upstream = load_upstream(command.encoder, command.device, command.precision, command.step)
    if command.out is not None:
        refuse_file(command.out)
    task = make_task(
        command.task,
        command.data,
        lite=command.lite,
        steps=command.steps,
        lexicons=command.lexicon,
        subset=command.subset,
        own=OwnData(command.label),
    )
    if hours is not None:
        task = limit_training(task, hours, command.seed)
    if command.language_model is not None and getattr(task, "symbols", None) != Characters():
        raise UserError("--language-model knows LibriSpeech's characters: leave it out for other corpora")
    protocol = f"{task.name}-lite" if command.lite else task.name
    out = command.out or results_root(command.encoder) / "superb" / upstream.name.replace(" ", "-") / protocol
    refuse_file(out)
    decoders = {}
    if command.language_model is not None:
        language = LanguageModel(command.language_model, *command.lexicon)
        decoders = {"paper": BeamDecoder(language, PAPER), "board": BeamDecoder(language, BOARD)}
    say(f"{protocol} ({entry.title}) on {upstream.name}; what is trained stays in {out}", aside=True)
    evaluation = task.evaluation()(task, upstream, out, command.seed, decoders, command.cache_gb)
    with lock_folder(out):
        results = evaluation.run(evaluation.candidates(command.lr, command.sweep))
    scores = in_words(results["metrics"], results["chance"])
    print(f"{protocol} on {upstream.name} ({upstream.parameters:,} parameters): test {scores}")
    for name, decoded in results["decoded"].items():
        print(f"  with the language model, {name} settings: {in_words(decoded)}")
    if command.lite:
        where = f"{len(task.folds)} folds" if len(task.folds) > 1 else task.folds[0].name
        print(f"  lite protocol, {task.recipe.steps} steps on {where}: not comparable with full results")
    print(f"  features: {results['audio_seconds_per_second']:,.0f} audio seconds per second; results in {out}")


def training_hours(command: Superb) -> float | None:
    """The amount of training speech that is asked for, if any."""
    if command.hours is not None and command.minutes is not None:
        raise UserError("--hours or --minutes, not both")
    hours = command.hours if command.minutes is None else command.minutes / 60
    if command.label and command.task not in ("classify", "tag"):
        raise UserError(f"--label is for classify and tag; {command.task} has its own labels")
    if command.task == "tag" and len(command.label) > 1:
        raise UserError("--label: tag has one column of tags")
    return hours
