"""How s3prl is set up for `s3prl_agreement.py`: its experts on the tests' corpora, with our weights and features.

Three things are replaced. torchaudio is not needed to train heads; a stand-in reads files and prepares waveforms.
Features come from our encoder for both sides, so s3prl's weighted sum is applied to each utterance. What is random is
left out on both sides: dropout, SpecAugment and the order of batches. s3prl's package lacks two datasets of `ctc` and
the vocabularies; its tokenizers encode the transcripts, and the vocabularies are written from our symbols.
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
from sjepa.evaluate.superb.records import Utterance
from sjepa.evaluate.superb.sound import Sound, prepare_waveform
from sjepa.evaluate.superb.task import Recipe, Task
from sjepa.evaluate.upstream import Upstream


def replace_torchaudio() -> None:
    """A module with the few functions that s3prl's datasets call."""

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
    torch.Tensor.cuda = lambda self, *_: self  # type: ignore[method-assign, assignment]  # verification asks for it


class DummyEncoder(nn.Module):
    """An encoder for s3prl's featurizer, which looks at its hidden states once."""

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
    """s3prl's expert of a task, and all that ties it to ours."""

    task: Task
    upstream: Upstream
    expert: Any
    others: Callable[[str, Sequence[Utterance]], tuple[Any, ...]]
    """What s3prl's dataset gives beside waveforms, for a mode and some utterances."""
    rename: dict[str, str]
    """Metrics as s3prl logs them, and as we call them."""
    parts: dict[str, list[str]]
    """Files of `train`, `dev` and `test` by s3prl's reader."""
    samples: Callable[[Utterance], np.ndarray | None]
    """An utterance's waveform by s3prl's reader."""
    order: list[int] | None = None
    """Place of each of our outputs among s3prl's."""
    percent: float = 100.0
    modes: dict[str, str] = field(default_factory=lambda: {"train": "train", "test": "test"})
    optimizer_config: dict[str, Any] = field(default_factory=lambda: {"name": "TorchOptim", "torch_optim_name": "Adam"})
    scaled_down: str = ""
    dtype: torch.dtype = torch.float32
    """Of heads. Where rounding grows from step to step, fp64 tells it from a difference."""

    def __post_init__(self) -> None:
        from s3prl.upstream.interfaces import Featurizer

        self.featurizer = Featurizer(DummyEncoder(self.upstream), upstream_device="cpu").to(self.dtype)
        self.expert.to(self.dtype)

    def copy_weights(self, head: nn.Module) -> None:
        """Our weights into s3prl's modules, which hold them in the same order; the speakers' vectors come last."""
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

    def step(self, batches: Sequence[Any], optimizer: torch.optim.Optimizer) -> float:
        """One step as s3prl's runner takes it."""
        losses = []
        for utterances, states, _ in batches:
            loss = self.forward("train", utterances, states, self.records()) / len(batches)
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
        """Whether both readers put the same files into each part; nothing if s3prl's package has no reader."""
        if not self.parts:
            return None
        fold = self.task.folds[0]
        ours = {"train": fold.train, "dev": fold.dev, "test": fold.test}
        return all(
            sorted({str(u.path) for u in ours[part]}) == sorted(set(names)) for part, names in self.parts.items()
        )

    def sample_difference(self, store: FeatureStore) -> float | None:
        """The largest difference of both sides' waveforms, of what is not cropped at random."""
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
    """The task with a learning rate at which heads learn something in few steps, so that metrics say something."""
    return replace(task, recipe=Recipe(50, lr, batch, accumulate, 50))


def output_order(task: Task, theirs: Sequence[Sequence[str]]) -> list[int]:
    """Place among s3prl's outputs of each of ours, by the names of the classes of each slot."""
    assert isinstance(task, ClassTask)
    order, first = [], 0
    for ours, names in zip(task.classes, theirs, strict=True):
        order += [first + list(names).index(name) for name in ours]
        first += len(names)
    return order


def make_class_side(
    task: Task, upstream: Upstream, expert: Any, paths: dict[str, list[str]], sets: dict[str, Any], **more: Any
) -> Side:
    """A side whose datasets give a waveform, a label and a name."""
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
    """A side whose labels are sequences of numbers."""

    def others(mode: str, utterances: Sequence[Utterance]) -> tuple[Any, ...]:
        return [np.asarray(encode(u)) for u in utterances], [u.path.stem for u in utterances]

    return Side(task, upstream, expert, others, rename, {}, lambda _: None, **more)
