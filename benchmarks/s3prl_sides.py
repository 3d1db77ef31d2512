"""Setup of s3prl for `s3prl_agreement.py`: its experts on the tests' corpora, with our weights and features.

Some parts are replaced. Substitutes for torchaudio and catalyst read files, prepare waveforms and satisfy imports.
Both sides use features of our encoder, so s3prl's weighted sum is applied to each utterance. Random parts are disabled
on both sides: dropout, SpecAugment and the order of batches. SpecAugment is compared separately, with the same random
numbers. s3prl's package lacks two datasets of `ctc` and the vocabularies. Its tokenizers encode the transcripts, and
the vocabularies are written from our symbols.
"""

import importlib
import importlib.machinery
import sys
import types
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from torch import Tensor, nn

from sjepa.evaluate.superb.classes import ClassTask
from sjepa.evaluate.superb.features import FeatureStore
from sjepa.evaluate.superb.protocol import RankBatch
from sjepa.evaluate.superb.records import Utterance
from sjepa.evaluate.superb.sound import Sound, prepare_waveform
from sjepa.evaluate.superb.task import Recipe, Task
from sjepa.evaluate.upstream import Upstream

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import superb_corpora as corpora

__all__ = [
    "Side",
    "corpora",
    "make_class_side",
    "make_expert",
    "make_sequence_side",
    "output_order",
    "replace_catalyst",
    "replace_torchaudio",
    "shorten",
]


def replace_catalyst() -> None:
    """Install an empty substitute for a sampler that s3prl imports and uses on several GPUs only.

    The versions of catalyst that pip still installs do not run on Python 3.10 and newer.
    """
    names = ("catalyst", "catalyst.data", "catalyst.data.sampler")
    sys.modules |= {name: types.ModuleType(name) for name in names}
    sys.modules[names[-1]].DistributedSamplerWrapper = object  # type: ignore[attr-defined]


def replace_torchaudio() -> None:
    """Install a module with the functions of torchaudio that s3prl's datasets call."""

    def load(path: str) -> tuple[Tensor, int]:
        samples, rate = soundfile.read(str(path), dtype="float32", always_2d=True)
        return torch.from_numpy(samples.T.copy()), rate

    def apply_effects_file(path: str, effects: list[list[str]]) -> tuple[Tensor, int]:
        samples, rate = load(path)
        sound = Sound.TRIMMED if effects[-1][0] == "silence" else Sound.LOWERED
        return torch.from_numpy(prepare_waveform(samples[0].numpy(), sound))[None], rate

    module = types.ModuleType("torchaudio")
    module.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)
    for name in ("sox_effects", "transforms", "functional", "compliance", "compliance.kaldi"):
        part = types.ModuleType(f"torchaudio.{name}")
        sys.modules[f"torchaudio.{name}"] = part
        setattr(module, name.rsplit(".", maxsplit=1)[-1], part)
    sys.modules["torchaudio"] = module
    module.load = load  # type: ignore[attr-defined]
    sys.modules["torchaudio.sox_effects"].apply_effects_file = apply_effects_file  # type: ignore[attr-defined]
    sys.modules["torchaudio.transforms"].Resample = lambda *_: nn.Identity()  # type: ignore[attr-defined]
    torch.Tensor.cuda = lambda self, *_: self  # type: ignore[method-assign, assignment]  # verification calls it


class DummyEncoder(nn.Module):
    """An encoder with zero features, from which s3prl's featurizer reads the shapes."""

    def __init__(self, upstream: Upstream):
        super().__init__()
        self.shape = upstream.states, upstream.dimension

    def forward(self, waveforms: list[Tensor]) -> dict[str, list[Tensor]]:
        states, dimension = self.shape
        return {"hidden_states": [torch.zeros(1, 49, dimension) for _ in range(states)]}

    def get_downsample_rates(self, key: str) -> int:
        return 320


@dataclass
class Side:
    """s3prl's expert of a task, and its connection to ours."""

    task: Task
    upstream: Upstream
    expert: Any
    others: Callable[[str, Sequence[Utterance]], tuple[Any, ...]]
    """Returns the values of s3prl's dataset other than waveforms, for a mode and some utterances."""
    rename: dict[str, str]
    """Maps s3prl's metric names to ours."""
    parts: dict[str, list[str]]
    """Files of `train`, `dev` and `test` according to s3prl's reader."""
    samples: Callable[[Utterance], np.ndarray | None]
    """Returns an utterance's waveform from s3prl's reader."""
    order: list[int] | None = None
    """Index of each of our outputs among s3prl's."""
    percent: float = 100.0
    modes: dict[str, str] = field(default_factory=lambda: {"train": "train", "test": "test"})
    optimizer_config: dict[str, Any] = field(default_factory=lambda: {"name": "TorchOptim", "torch_optim_name": "Adam"})
    scaled_down: str = ""
    dtype: torch.dtype = torch.float32
    """Precision of heads. If rounding errors grow with steps, fp64 separates them from real differences."""
    steps: int = 50
    """Steps before the test. A head that learns slowly needs more for meaningful metrics."""
    further: Callable[[], dict[str, Any]] = dict
    """Returns other comparisons of the task. Each has a flag `agrees`."""

    def __post_init__(self) -> None:
        from s3prl.upstream.interfaces import Featurizer

        self.featurizer = Featurizer(DummyEncoder(self.upstream), upstream_device="cpu").to(self.dtype)
        self.expert.to(self.dtype)

    def copy_weights(self, head: nn.Module) -> None:
        """Copy our weights to s3prl's modules, which have the same order, except that speaker vectors are last."""
        ours = dict(head.named_parameters())
        if "speakers" in ours:
            ours["speakers"] = ours.pop("speakers")
        theirs = list(self.expert.parameters())
        assert len(ours) == len(theirs)
        with torch.no_grad():
            for (name, source), target in zip(ours.items(), theirs, strict=True):
                if name.startswith("output.") and self.order is not None:
                    target[self.order] = source
                else:
                    assert source.shape == target.shape, name
                    target.copy_(source)

    def optimizer(self, lr: float) -> torch.optim.Optimizer:
        from s3prl.optimizers import get_optimizer

        config = {**self.optimizer_config, "lr": lr}
        made: torch.optim.Optimizer = get_optimizer([self.featurizer, self.expert], self.task.recipe.steps, config)
        return made

    def records(self) -> dict[str, list[Any]]:
        return defaultdict(list)

    def forward(self, mode: str, utterances: Sequence[Utterance], states: Sequence[Tensor], records: Any) -> Any:
        features = [self.featurizer._weighted_sum(list(each.to(self.dtype))) for each in states]
        return self.expert(self.modes[mode], features, *self.others(mode, utterances), records=records)

    def step(self, batches: Sequence[RankBatch], optimizer: torch.optim.Optimizer) -> float:
        """Take one step like s3prl's runner."""
        losses = []
        for batch in batches:
            states = [padded[:, :frames] for padded, frames in zip(batch.states, batch.frames.tolist(), strict=True)]
            loss = self.forward("train", batch.utterances, states, self.records()) / len(batches)
            loss.backward()
            losses.append(float(loss))
        trained = [*self.featurizer.parameters(), *self.expert.parameters()]
        norm = torch.nn.utils.clip_grad_norm_(trained, self.task.clip)
        if not torch.isnan(norm):
            optimizer.step()
        optimizer.zero_grad()
        return sum(losses)

    def test_order(self, utterances: Sequence[Utterance]) -> Sequence[Utterance]:
        return utterances

    def log(self, records: Any, logger: Any) -> None:
        self.expert.log_records(
            self.modes["test"], records=records, logger=logger, global_step=1, batch_ids=[], total_batch_num=1
        )

    def metrics(self, logged: dict[str, float]) -> dict[str, float]:
        found = {key.split("-")[-1].lower(): value for key, value in logged.items()}
        return {ours: self.percent * found[theirs] for theirs, ours in self.rename.items()}

    def same_parts(self) -> bool | None:
        """Return whether both readers have the same files in each part, or None if s3prl's package has no reader."""
        if not self.parts:
            return None
        fold = self.task.folds[0]
        ours = {"train": fold.train, "dev": fold.dev, "test": fold.test}
        return all(
            sorted({str(u.path) for u in ours[part]}) == sorted(set(names)) for part, names in self.parts.items()
        )

    def sample_difference(self, store: FeatureStore) -> float | None:
        """Return the largest difference of the waveforms of both sides, without random crops."""
        if not self.parts:
            return None
        fold = self.task.folds[0]
        largest = 0.0
        for utterance in [*fold.train[:10], *fold.test[:10]]:
            theirs = self.samples(utterance)
            if theirs is not None:
                ours = store.read(replace(utterance, crop=0), (-1, 0))
                largest = max(largest, float(np.abs(ours - theirs).max()) if ours.shape == theirs.shape else 1.0)
        return largest


def make_expert(name: str, upstream: Upstream, place: Path, config: dict[str, Any]) -> Any:
    module = importlib.import_module(f"s3prl.downstream.{name}.expert")
    (place / "theirs").mkdir(exist_ok=True)
    torch.manual_seed(0)
    return module.DownstreamExpert(
        upstream_dim=upstream.dimension, upstream_rate=320, downstream_expert=config, expdir=str(place / "theirs")
    )


def shorten(task: Task, batch: int, accumulate: int, lr: float) -> Task:
    """Set 50 steps and a learning rate at which heads learn enough for meaningful metrics."""
    return replace(task, recipe=Recipe(50, lr, batch, accumulate, 50))


def output_order(task: Task, theirs: Sequence[Sequence[str]]) -> list[int]:
    """Return the index of each of our outputs among s3prl's, by class names of each slot."""
    assert isinstance(task, ClassTask)
    order, first = [], 0
    for ours, names in zip(task.classes, theirs, strict=True):
        order += [first + list(names).index(name) for name in ours]
        first += len(names)
    return order


def make_class_side(
    task: Task, upstream: Upstream, expert: Any, paths: dict[str, list[str]], sets: dict[str, Any], **more: Any
) -> Side:
    """Make a side whose datasets return a waveform, a label and a name."""
    items = {(part, path): index for part, files in paths.items() for index, path in enumerate(files)}

    def others(mode: str, utterances: Sequence[Utterance]) -> tuple[Any, ...]:
        found = [sets[mode][items[mode, str(u.path)]] for u in utterances]
        return [label for _, label, _ in found], [name for _, _, name in found]

    def samples(utterance: Utterance) -> np.ndarray | None:
        part = next((part for part in ("train", "test") if (part, str(utterance.path)) in items), None)
        if part is None or utterance.crop == 16_000:
            return None
        waveform: np.ndarray = np.asarray(sets[part][items[part, str(utterance.path)]][0])
        return waveform

    return Side(task, upstream, expert, others, {"acc": "accuracy"}, paths, samples, **more)


def make_sequence_side(
    task: Task, upstream: Upstream, expert: Any, encode: Callable[[Utterance], Any], rename: dict[str, str], **more: Any
) -> Side:
    """Make a side whose labels are sequences of numbers."""

    def others(mode: str, utterances: Sequence[Utterance]) -> tuple[Any, ...]:
        return [np.asarray(encode(u)) for u in utterances], [u.path.stem for u in utterances]

    return Side(task, upstream, expert, others, rename, {}, lambda _: None, **more)
