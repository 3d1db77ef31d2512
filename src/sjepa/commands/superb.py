"""`sjepa superb`: evaluate a frozen encoder on a SUPERB task, or on all of them."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from sjepa.bounds import AMOUNT, COUNT, GIGABYTES, INDEX, LEARNING_RATE, SEED
from sjepa.device import Device
from sjepa.errors import UserError
from sjepa.evaluate.superb import ALL, TaskName
from sjepa.subcommands import parse

if TYPE_CHECKING:
    from sjepa.evaluate.superb.entry import Entry
    from sjepa.evaluate.superb.search import Search
    from sjepa.evaluate.superb.task import Task
    from sjepa.evaluate.upstream import Upstream

ARCHIVE = "predict{}.zip"  # with the learning rates, as in the names of folders


@dataclass(frozen=True)
class Superb:
    """Train a SUPERB head on a frozen encoder, select on dev, report on test.

    docs/evaluate.md lists the tasks with their corpora, heads and scores. Run the same command again to continue.
    """

    task: Annotated[TaskName, tyro.conf.Positional]
    """The task. Of SUPERB: asr (speech recognition), pr (phoneme recognition), sf (slot filling), er (emotion
    recognition), ks (keyword spotting), ic (intent classification), sid (speaker identification), asv (speaker
    verification), sd (speaker diarization), qbe (query by example). Others: ravdess (acted emotions), coffee (drink
    orders), classify and tag (your own labels). `all` runs every task of SUPERB whose corpus is in the data folder, and
    prints the table."""
    encoder: str
    """A run, an encoder folder, a shipped encoder (english-compact), a Hugging Face speech encoder (HuBERT, WavLM,
    wav2vec 2.0, data2vec-audio, UniSpeech, Whisper), s3prl:NAME, MODULE:FUNCTION, untrained:PATH, mfcc, mfcc+context or
    logmel."""
    data: Path
    """The corpus of the task in its own layout; for `all`, the folder with the corpora. asr, classify and tag accept
    any corpus that `sjepa index` reads, or an index."""
    out: Path | None = None
    """Folder for the results. Default: superb/ENCODER/TASK, or TASK-lite, below RUN/results or runs; with --lr or
    --sweep, its name ends in -lr-RATE or -sweep. For `all`, the folder that holds the folders of the tasks."""
    lite: bool = False
    """Use the reduced protocol for small machines and small data: fewer steps, less data, a narrower recurrent head."""
    steps: Annotated[int | None, COUNT] = None
    """Optimizer steps of the lite protocol."""
    subset: str = "dev-clean"
    """Subset of LibriSpeech for asr and pr with --lite; it is split by speaker."""
    lr: Annotated[float | None, LEARNING_RATE] = None
    """Learning rate instead of the task's default."""
    label: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """For classify, the column with the classes; repeat it for several columns that must all be right. For tag, the
    column with one tag per word."""
    hours: Annotated[float | None, AMOUNT] = None
    """Train on this many hours, drawn at random by the seed; dev and test stay whole. Not for qbe."""
    minutes: Annotated[float | None, AMOUNT] = None
    """Train on this many minutes instead."""
    sweep: bool = False
    """Train at learning rates 1e-1 to 1e-7 and keep the one that is best on dev."""
    step: Annotated[int | None, INDEX] = None
    """Use the checkpoint at this step instead of the newest encoder of a run; see train.keep_every."""
    seed: Annotated[int, SEED] = 0
    """Seed of everything random."""
    lexicon: tyro.conf.UseAppendAction[tuple[Path, ...]] = ()
    """For pr, pronunciations: one word and its phones per line; repeat it to merge lexicons. For asr with a KenLM
    binary, the words of the language model."""
    language_model: Path | None = None
    """For asr, an ARPA or KenLM binary file. The test set is also decoded with it, with the settings
    of the paper and of the SUPERB leaderboard."""
    replace: bool = False
    """Replace an evaluation in the folder that is of other weights of the encoder. Without it, such a folder is
    refused."""
    device: Device = "auto"
    """Where to run; auto uses a GPU if there is one."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of the encoder: fp32 as in s3prl, or bf16, which is faster on a GPU."""
    cache_gb: Annotated[float | None, GIGABYTES] = None
    """Memory for cached features in GiB. Default: 4 on a CPU, half of the free memory on a GPU."""
    feature_cache: Path | None = None
    """Folder for features that do not fit in memory. You can delete it at any time."""
    feature_cache_gb: Annotated[float, AMOUNT] = 100.0
    """Largest size of that folder in GiB."""

    @property
    def is_limited(self) -> bool:
        """Whether heads train on a part of the training speech."""
        return self.hours is not None or self.minutes is not None


def run(arguments: list[str]) -> None:
    command = parse(Superb, "sjepa superb", arguments)
    if command.sweep and command.lr is not None:
        raise UserError("--sweep chooses the learning rate; leave --lr out")
    if command.hours is not None and command.minutes is not None:
        raise UserError("give --hours or --minutes, not both")
    if command.label:
        check_labels(command)
    from sjepa import distributed
    from sjepa.evaluate.superb.tasks import all_entries, find_entry
    from sjepa.files import refuse_file, require_folder

    if command.out is not None:
        refuse_file(command.out)
    if command.language_model is not None and command.task != ALL and not find_entry(command.task).language_model:
        raise UserError(f"--language-model is for {', '.join(e.name for e in all_entries() if e.language_model)}")
    if command.is_limited and command.task != ALL and not find_entry(command.task).search.trains:
        raise UserError(f"{command.task} has no training part: leave --hours and --minutes out")
    if command.task == ALL:
        require_folder(command.data)
    distributed.setup(command.device)
    try:
        start(command)
    finally:
        distributed.shutdown()


def start(command: Superb) -> None:
    """Load the encoder on every rank and run the requested tasks."""
    from sjepa.evaluate.results import results_root
    from sjepa.evaluate.superb.tasks import find_entry
    from sjepa.evaluate.upstream import load_upstream

    upstream = load_upstream(command.encoder, command.device, command.precision, command.step)
    place = results_root(command.encoder) / "superb" / upstream.name.replace(" ", "-")
    if command.task == ALL:
        evaluate_all(command, upstream, command.out or place)
    else:
        evaluate(command, find_entry(command.task), upstream, command.data, place)


def evaluate(command: Superb, entry: "Entry", upstream: "Upstream", data: Path, place: Path) -> Path:
    """Run one task: train, select, test, and print the scores. Return the folder of its results, below `place`.

    A UserError is raised on all ranks.
    """
    from sjepa import distributed
    from sjepa.evaluate.superb.protocol import format_scores
    from sjepa.locks import lock_folder

    evaluation = distributed.run_on_all_ranks(lambda: prepare(command, entry, upstream, data, place))
    task, out = evaluation.task, evaluation.out
    with ExitStack() as holding:
        distributed.run_on_main_rank(lambda: holding.enter_context(lock_folder(out)))
        results = evaluation.run(evaluation.candidates(command.lr, command.sweep))
    scores = format_scores(results["metrics"], results["chance"])
    report(f"{name_protocol(command, task)} on {upstream.name} ({upstream.parameters:,} parameters): test {scores}")
    for name, decoded in results["decoded"].items():
        report(f"  with the language model, {name} settings: {format_scores(decoded)}")
    if command.lite:
        where = f"{len(task.folds)} folds" if len(task.folds) > 1 else task.folds[0].name
        report(f"  lite protocol, {task.recipe.steps} steps on {where}: not comparable with full results")
    report(f"  features: {results['audio_seconds_per_second']:,.0f} audio seconds per second; results in {out}")
    return out


def prepare(command: Superb, entry: "Entry", upstream: "Upstream", data: Path, place: Path) -> "Search":
    """Read the corpus of a task, and what decodes it. Return the evaluation, ready to run."""
    from sjepa.evaluate.superb.decode import DECODER_SETTINGS, BeamDecoder, LanguageModel
    from sjepa.evaluate.superb.feature_files import FeatureFiles
    from sjepa.evaluate.superb.text import Characters
    from sjepa.evaluate.superb.user_corpus import limit_training
    from sjepa.progress import say

    hours = command.hours if command.minutes is None else command.minutes / 60
    request = entry.request(
        data,
        lite=command.lite,
        steps=command.steps,
        lexicons=command.lexicon,
        subset=command.subset,
        columns=command.label,
    )
    task = entry.build(entry, request)
    if hours is not None and entry.search.trains:
        task = limit_training(task, hours, command.seed)
    protocol = name_protocol(command, task)
    own = command.out if command.task != ALL else None
    out = own or place / (protocol + (name_rates(command) if entry.search.trains else ""))
    if command.language_model is not None and entry.language_model and getattr(task, "symbols", None) != Characters():
        raise UserError("--language-model only supports LibriSpeech's characters: leave it out for other corpora")
    decoders = {}
    if command.language_model is not None and entry.language_model:
        language = LanguageModel(command.language_model, *command.lexicon)
        decoders = {name: BeamDecoder(language, settings) for name, settings in DECODER_SETTINGS.items()}
    say(f"{protocol} ({entry.title}) on {upstream.name}; training state and results are in {out}", aside=True)
    files = None
    if command.feature_cache is not None:
        files = FeatureFiles(command.feature_cache, int(command.feature_cache_gb * 2**30), upstream)
    return entry.search(task, upstream, out, command.seed, decoders, command.cache_gb, files, command.replace)


def name_protocol(command: Superb, task: "Task") -> str:
    return f"{task.name}-lite" if command.lite else task.name


def name_rates(command: Superb) -> str:
    """Return the end of a folder's name for learning rates other than the task's."""
    if command.sweep:
        return "-sweep"
    return "" if command.lr is None else f"-lr-{command.lr:g}"


def report(text: str) -> None:
    """Print a result on the main rank only."""
    from sjepa import distributed

    if distributed.is_main():
        print(text)


def evaluate_all(command: Superb, upstream: "Upstream", out: Path) -> None:
    """Run every task whose corpus exists. Then print the table and write the archive for the SUPERB leaderboard."""
    from sjepa import distributed
    from sjepa.evaluate.results import find_results
    from sjepa.evaluate.superb.submission import pack
    from sjepa.evaluate.superb.tasks import all_entries
    from sjepa.evaluate.table import build_sections
    from sjepa.evaluate.tabular import to_markdown

    places = {entry.name: entry.corpus.find(command.data) for entry in all_entries() if entry.corpus is not None}
    found = [entry for entry in all_entries() if places.get(entry.name) is not None]
    missing = [name for name, place in places.items() if place is None]
    if not found:
        raise UserError(f"{command.data} has no corpus of SUPERB: docs/evaluate.md lists the layout of each")
    absent = f"; no corpus of {', '.join(missing)}" if missing else ""
    report(f"tasks: {', '.join(entry.name for entry in found)}{absent}")
    folders, failed = {}, {}
    for entry in found:
        place = places[entry.name]
        assert place is not None
        try:
            folders[entry.name] = evaluate(command, entry, upstream, place, out)
        except UserError as error:  # on all ranks; the other tasks can still be run
            failed[entry.name] = str(error)
            report(f"{entry.name} was not run: {error}")
    if folders:
        report("\n" + to_markdown(build_sections(find_results(folders.values()))).rstrip("\n"))
    submitted = [(e.submission, folders[e.name]) for e in found if e.submission is not None and e.name in folders]
    archive = out / ARCHIVE.format(name_rates(command))
    whole = not (command.lite or command.is_limited)
    if whole and distributed.is_main() and (packed := pack(submitted, archive)):
        report(f"archive for the SUPERB leaderboard: {archive} ({', '.join(packed)})")
    if failed:
        raise UserError(f"{len(failed)} of {len(found)} tasks were not run: {', '.join(failed)}")


def check_labels(command: Superb) -> None:
    """Raise UserError if the task does not accept the given --label."""
    from sjepa.evaluate.superb.entry import LabelColumns
    from sjepa.evaluate.superb.tasks import all_entries

    labelled = {entry.name: entry for entry in all_entries() if entry.label_columns is not LabelColumns.NONE}
    if command.task not in labelled:
        raise UserError(f"--label is for {' and '.join(labelled)}; {command.task} has its own labels")
    if labelled[command.task].label_columns is LabelColumns.TAGS and len(command.label) > 1:
        raise UserError(f"--label: {command.task} takes one column of tags")
