"""An evaluation: try candidates, select the best on dev, report it on test."""

import hashlib
import json
import platform
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from sjepa import distributed
from sjepa.audio.io import SAMPLE_RATE
from sjepa.counts import format_count
from sjepa.durations import AUDIO, format_duration
from sjepa.errors import UserError
from sjepa.evaluate.audio_hash import hash_audio
from sjepa.evaluate.results import RESULTS, write_results
from sjepa.evaluate.superb.decode import BeamDecoder
from sjepa.evaluate.superb.feature_files import FeatureFiles
from sjepa.evaluate.superb.features import FeatureStore
from sjepa.evaluate.superb.records import Fold, Utterance, measure_recordings
from sjepa.evaluate.superb.sound import Sound
from sjepa.evaluate.superb.state import check_identity, is_of_other_weights, read_identity
from sjepa.evaluate.superb.task import Task
from sjepa.evaluate.upstream import Upstream, check_unchanged, describe_encoder
from sjepa.fields import NUMBER, TABLE, require, table_of
from sjepa.files import read_json
from sjepa.progress import say
from sjepa.version import __version__


@dataclass
class Search(ABC):
    """Evaluate one encoder on one task, in one folder. Subclasses define the candidates and how to score them."""

    candidate_key: ClassVar[str]
    """Name of the candidates in `results.json`."""
    trains: ClassVar[bool] = True
    """Whether heads are trained, at one or several learning rates."""

    task: Task
    upstream: Upstream
    out: Path
    seed: int = 0
    decoders: dict[str, BeamDecoder] = field(default_factory=dict)
    """Additional decoders for the test part, by name."""
    cache_gb: float | None = None
    feature_files: FeatureFiles | None = None
    """Storage for features that do not fit in memory."""
    replace: bool = False
    """Replace an evaluation in the folder that is of other weights of the encoder."""

    def __post_init__(self) -> None:
        self.store = FeatureStore(self.upstream, self.cache_gb, self.feature_files)
        self.lengths: dict[str, int] = {}

    @abstractmethod
    def candidates(self, lr: float | None, sweep: bool) -> Sequence[float]:
        """Return the candidates for a given learning rate, a sweep, or the protocol."""

    @abstractmethod
    def dev_scores(self, candidates: Sequence[float]) -> dict[float, float]:
        """Return the selection metric on dev of each candidate, averaged over folds."""

    @abstractmethod
    def test(self, fold: Fold, index: int, candidate: float) -> dict[str, Any]:
        """Score the selected candidate on the test part of a fold."""

    @abstractmethod
    def protocol(self) -> dict[str, Any]:
        """Return the settings of the protocol for `results.json`."""

    def state_files(self) -> list[Path]:
        """Return the stored states of training. None for a task without training."""
        return []

    @abstractmethod
    def clean_up(self, chosen: float) -> None:
        """Delete files that are not needed after the test."""

    def run(self, candidates: Sequence[float]) -> dict[str, Any]:
        """Score every candidate on dev and test the best. Return the contents of `results.json`.

        What fails on one rank raises a UserError on all of them, so that none waits for the others.
        """
        task = self.task
        self.out.mkdir(parents=True, exist_ok=True)
        distributed.run_on_all_ranks(self.measure)
        self.identity = self.describe()
        if self.replace:
            distributed.run_on_main_rank(self.delete_other_weights)
        past = distributed.run_on_all_ranks(lambda: self.find_results(candidates))
        if past is not None and not self.decoders:
            say(f"{self.out} already has the results of this evaluation: nothing to do; delete it to evaluate again")
            return past
        if past is None:
            self.report_work(candidates)
            dev = self.dev_scores(candidates)
        else:
            dev = {candidate: past["dev"][f"by_{self.candidate_key}"][f"{candidate:g}"] for candidate in candidates}
        chosen = min(dev, key=lambda candidate: dev[candidate] if task.selection.lower else -dev[candidate])
        folds = [self.test(fold, index, chosen) for index, fold in enumerate(task.folds)]
        distributed.run_on_all_ranks(lambda: check_unchanged(self.upstream))
        results = self.identity | {
            "metrics": average([fold["metrics"] for fold in folds]),
            "chance": average([fold["chance"] for fold in folds]),
            "decoded": {name: average([fold["decoded"][name] for fold in folds]) for name in self.decoders},
            "decoders": {name: decoder.describe() for name, decoder in self.decoders.items()},
            self.candidate_key: chosen,
            "dev": {
                "metric": task.selection.name,
                f"by_{self.candidate_key}": {f"{candidate:g}": score for candidate, score in dev.items()},
            },
            "section": task.section,
            "better": {metric.name: metric.better for metric in task.metrics},
            "folds": folds,
            "audio_seconds_per_second": round(self.store.speed, 1),
            "versions": {"sjepa": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }
        distributed.run_on_main_rank(lambda: self.finish(results, chosen))
        return results

    def finish(self, results: dict[str, Any], chosen: float) -> None:
        write_results(self.out, results)
        self.clean_up(chosen)

    def training_steps(self, candidates: Sequence[float]) -> int:
        """Return how many steps the training of all candidates takes. 0 for a task without training."""
        return 0

    def report_work(self, candidates: Sequence[float]) -> None:
        """Report how much there is to do before the work starts, if it runs on a CPU."""
        if self.upstream.device.type != "cpu":
            return
        used = list({u.key: u for fold in self.task.folds for u in fold.utterances}.values())
        work = f"{format_duration(3600 * self.hours(used), AUDIO)} of audio to encode"
        if steps := self.training_steps(candidates):
            work += f", {steps:,} head steps to train"
        say(f"This runs on a CPU: {work}. Large tasks take hours or days here: use a GPU for them", aside=True)

    def delete_other_weights(self) -> None:
        """Delete stored states and results that differ only in the weights of the encoder.

        The results are deleted last, so that a repeated command completes a deletion that was killed.
        """
        for file in self.state_files():
            if is_of_other_weights(read_identity(file), self.identity):
                file.unlink()
        results = self.out / RESULTS
        if results.is_file() and is_of_other_weights(read_json(results), self.identity):
            self.delete_predictions()
            results.unlink()

    def delete_predictions(self) -> None:
        places = () if self.task.submission is None else self.task.submission.places
        for path in (*self.out.glob("predictions*.txt"), *(self.out / place for place in places)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def find_results(self, candidates: Sequence[float]) -> dict[str, Any] | None:
        """Return existing results of these candidates. Raise UserError for those of others or another evaluation."""
        file = self.out / RESULTS
        if not file.is_file():
            return None
        results = read_json(file)
        check_identity(self.out, results, self.identity)
        dev = require(results, "dev", TABLE, str(file))
        tried = require(dev, f"by_{self.candidate_key}", table_of(NUMBER), f"{file}: dev")
        for name in ("metrics", "chance"):
            require(results, name, table_of(NUMBER), str(file))
        require(results, "decoded", table_of(table_of(NUMBER)), str(file))
        chosen = require(results, self.candidate_key, NUMBER, str(file))
        wanted = {f"{candidate:g}": candidate for candidate in candidates}
        if tried.keys() != wanted.keys():
            name = self.candidate_key.replace("_", " ")
            raise UserError(
                f"{self.out} contains results of the {name}s {', '.join(tried)}, not {', '.join(wanted)}: choose "
                "another --out"
            )
        self.check_language_model(results)
        return results if chosen in candidates else None

    def check_language_model(self, results: dict[str, Any]) -> None:
        """Raise UserError if results were decoded with another language model."""
        ours = {name: decoder.describe() for name, decoder in self.decoders.items()}
        theirs = results.get("decoders", {})
        if ours and theirs and theirs != ours:
            raise UserError(f"{self.out} was decoded with another language model or lexicon: choose another --out")

    def describe(self) -> dict[str, Any]:
        """Return everything that identifies an evaluation."""
        task = self.task
        parts = [{"train": fold.train, "dev": fold.dev, "test": fold.test} for fold in task.folds]
        data = [
            {"fold": fold.name}
            | {f"{name}_utterances": len(part) for name, part in named.items()}
            | {f"{name}_hours": round(self.hours(part), 3) for name, part in named.items()}
            for fold, named in zip(task.folds, parts, strict=True)
        ]
        return {
            "task": task.name,
            "protocol": self.protocol(),
            "data": data,
            "labels": hash_labels(task),
            "audio": self.audio,
            "encoder": describe_encoder(self.upstream),
            "precision": self.upstream.precision,
            "seed": self.seed,
        }

    def measure(self) -> None:
        """Read the length of every file from its header, and hash the audio. Raise UserError if a file is not audio."""
        utterances = [u for fold in self.task.folds for u in fold.utterances]
        self.lengths = measure_recordings(utterances)
        self.audio = hash_audio(utterances)
        say(f"{format_count(len(self.lengths), 'file')}, {sum(self.lengths.values()) / SAMPLE_RATE / 3600:.2f} hours")

    def hours(self, utterances: Sequence[Utterance]) -> float:
        return float(self.samples(utterances).sum()) / SAMPLE_RATE / 3600

    def samples(self, utterances: Sequence[Utterance]) -> np.ndarray:
        """Return the samples of each utterance according to its header, before silence is removed."""
        return np.array([min(u.length(self.lengths[u.recording]), u.crop or 2**40) for u in utterances])


def hash_labels(task: Task) -> str:
    """Return a hash of all utterances with labels, and of all possible answers."""
    parts = [part for fold in task.folds for part in (fold.train, fold.dev, fold.test)]
    asked = [[(u.name, u.label, u.crop, *describe_audio(u)) for u in part] for part in parts]
    return hashlib.sha256(json.dumps([asked, task.answers()]).encode()).hexdigest()


def describe_audio(utterance: Utterance) -> tuple[int | str, ...]:
    """Return how the audio is cut and prepared, or nothing if it is unchanged."""
    plain = not utterance.start and not utterance.samples and utterance.sound is Sound.UNCHANGED
    return () if plain else (utterance.start, utterance.samples, utterance.sound)


def average(scores: list[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}
