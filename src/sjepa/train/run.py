"""A run's moving parts: what starts, is saved and continues together."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sjepa import distributed
from sjepa.audio.augment import augment
from sjepa.config import Config
from sjepa.cuda_graphs import StepGraphs
from sjepa.errors import UserError
from sjepa.model import formats
from sjepa.model.sjepa import SJEPA
from sjepa.phases import Phase
from sjepa.runs import checkpoint
from sjepa.runs.alarms import Alarm
from sjepa.runs.folder import RunFolder
from sjepa.runs.steps import load_step
from sjepa.seeds import seed_from
from sjepa.targets.kinds import Source
from sjepa.targets.layer import LayerChoice
from sjepa.targets.targets import Targets
from sjepa.train.compute import SideStream, compile_parts, compiles
from sjepa.train.loss import frame_sums, masked_kl
from sjepa.train.metrics import Meter


@dataclass
class Run:
    """Everything that a checkpoint holds, and what a process has made for it."""

    config: Config
    model: SJEPA
    layer: LayerChoice
    device: torch.device
    optimizer: torch.optim.AdamW
    frame_sums: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] = frame_sums
    masked_kl: Callable[[Tensor, Tensor, Tensor], Tensor] = masked_kl
    augment: Callable[[Tensor, Tensor, Tensor | None, int, bool], Tensor] = augment
    targets: Targets = field(init=False)
    meter: Meter = field(init=False)
    side_stream: SideStream = field(init=False)
    graphs: StepGraphs | None = None
    phase: int = 0  # the phase whose targets are installed; none at first
    step: int = 0
    position: tuple[int, int] = (0, 0)
    bad_utterances: int = 0
    log_bytes: int = 0
    alarms: list[Alarm] = field(default_factory=list)  # of the last line

    @staticmethod
    def start(config: Config, device: torch.device) -> "Run":
        torch.manual_seed(config.seed)
        model = SJEPA(config.encoder, config.predictor, 1, config.train.visible_path).to(device)
        distributed.broadcast_module(model)
        run = Run(config, model, LayerChoice(config.layer), device, make_optimizer(config, model, device))
        run.side_stream = SideStream(device)
        if compiles(config, device):
            compile_parts(model.encoder)
            model.predict = torch.compile(model.predict, dynamic=False)  # type: ignore[method-assign]
            run.frame_sums = torch.compile(frame_sums, dynamic=False)
            run.masked_kl = torch.compile(masked_kl, dynamic=False)
            run.augment = torch.compile(augment, dynamic=False)
        return run

    def begin_from(self, source: str) -> None:
        """Take an encoder's weights from elsewhere; predictor and head stay new."""
        weights, fields = formats.read_encoder(Path(source))
        ours = {name: getattr(self.config.encoder, name) for name in fields}
        sizes = ("hidden_size", "layers", "heads", "inner_size", "conv_channels", "position_kernel", "position_groups")
        other = [f"--encoder.{name.replace('_', '-')} {fields[name]}" for name in sizes if fields[name] != ours[name]]
        if other:
            raise UserError(f"{source} holds an encoder of another size than the run's: set {' '.join(other)}")
        formats.load_strictly(self.model.encoder, weights, source)

    @property
    def active_layer(self) -> int | None:
        """The layer of the target encoder that targets read; None if they read none."""
        return self.layer.active if self.targets.target_encoder is not None else None

    def make_targets(self, phase: Phase) -> Targets:
        """Targets of a phase, not fitted yet; `same` stands for those of the phase before."""
        number = phase.number
        while self.config.phases[number - 1].targets == "same":
            number -= 1
        settings = self.config.phases[number - 1]
        assert settings.targets != "same"
        # A target encoder carries on into the next phase.
        past = self.targets.target_encoder if self.phase else None
        targets = Targets(
            settings.targets,
            Source(past or self.model.encoder, self.config.mfcc, seed_from(self.config.seed, number)),
            self.config.gmm,
            k=settings.k,
            dimensions=settings.dimensions,
            hard=settings.hard,
            temperature=settings.temperature,
            centred=settings.centred,
        )
        if compiles(self.config, self.device):
            if distributed.world_size() == 1:  # ranks sum the mixture's statistics in the midst of it
                targets.compile(dynamic=False)
            if targets.target_encoder is not None:
                compile_parts(targets.target_encoder)
        return targets.to(self.device)

    def install(self, targets: Targets, phase: int, new_output: bool = True) -> None:
        """Use these targets from now on, with a new last layer of the head where components mean something new."""
        self.targets, self.phase = targets, phase
        if new_output:
            torch.manual_seed(seed_from(self.config.seed, targets.components))
            self.model.replace_output(targets.components)
            distributed.broadcast_module(self.model.head.output)
            past = self.optimizer
            self.optimizer = make_optimizer(self.config, self.model, self.device)
            self.optimizer.state.update({p: state for p, state in past.state.items() if p in self.optimizer.state})
        self.meter = Meter(targets.components, self.device)
        # Graphs hold the addresses of what they were captured with. Over several GPUs steps run without them.
        single = distributed.world_size() == 1
        self.graphs = StepGraphs() if single and compiles(self.config, self.device) else None

    def set_learning_rate(self, rate: float) -> None:
        """On a GPU in place, because a captured step reads it there."""
        group = self.optimizer.param_groups[0]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate

    def save(self, folder: RunFolder, ended: int | None = None) -> None:
        """Write the encoder and a checkpoint from the main rank; all ranks wait for it, and all hear of it if it fails.

        `ended` is the phase that ends here, if one does.
        """
        if not all(bool(torch.isfinite(p).all()) for p in self.model.parameters()):
            raise UserError(f"weights are no longer finite at step {self.step:,}: lower the learning rate")
        failure = None
        if distributed.is_main():
            names = dict(self.model.named_parameters())
            moments = {
                f"{name}/{key}": value for name, p in names.items() for key, value in self.optimizer.state[p].items()
            }
            parts = {
                "model": self.model.state_dict(),
                "targets": self.targets.state_dict(),
                "optimizer": moments,
                "meter": self.meter.state(),
            }
            state = {
                "position": self.position,
                "ranks": self.layer.smoothed,
                "bad_utterances": self.bad_utterances,
                "phase": self.phase,
                "log_bytes": self.log_bytes,
            }
            try:
                if ended is not None:  # before the checkpoint, which says that this is done
                    self.export(folder, ended)
                checkpoint.save(folder, self.step, parts, state)
                if ended is None:
                    self.export(folder, ended)
                ends = {phase.end for phase in self.config.schedule()}
                checkpoint.prune(folder, self.config.train.keep_checkpoints, ends, self.config.train.keep_every)
            except UserError as error:
                failure = str(error)
        failure = distributed.broadcast_object(failure)
        if failure:
            raise UserError(failure)

    def restore(self, folder: RunFolder, say: Any, step: int | None = None) -> bool:
        """Continue from the newest sound checkpoint of a run directory, if there is one, or from that of a step."""
        found = checkpoint.load_latest(folder, say) if step is None else load_step(folder.path, step)
        if found is None:
            return False
        parts, state = found
        self.step = state["step"]
        self.position = tuple(state["position"])
        self.layer.smoothed = state["ranks"]
        self.bad_utterances, self.log_bytes = state["bad_utterances"], state["log_bytes"]
        self.install(self.make_targets(self.config.schedule()[state["phase"] - 1]), state["phase"])
        self.model.load_state_dict(parts["model"])
        self.targets.load_state_dict(parts["targets"])
        self.meter.load(parts["meter"])
        for name, p in self.model.named_parameters():
            for key, value in self.optimizer.state[p].items():
                value.copy_(parts["optimizer"][f"{name}/{key}"])
        return True

    def export(self, folder: RunFolder, ended: int | None) -> None:
        """Write the encoder as it is now, and at the end of a phase what stays of it."""
        try:
            self.model.encoder.save_pretrained(folder.encoder)
            if ended is not None:
                self.targets.codebook.save(folder.codebook(ended))
                if ended < len(self.config.phases):
                    self.model.encoder.save_pretrained(folder.phase_encoder(ended))
        except OSError as error:
            raise checkpoint.cannot_write("the encoder", self.step, folder, error) from error


def make_optimizer(config: Config, model: SJEPA, device: torch.device) -> torch.optim.AdamW:
    train = config.train
    lr = torch.zeros((), device=device) if device.type == "cuda" else 0.0
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=lr,
        betas=(train.beta1, train.beta2),
        weight_decay=train.weight_decay,
        fused=True,
        capturable=device.type == "cuda",
    )
    # Now and not at a parameter's first step, which LayerDrop may put off into a captured one.
    for p in model.parameters():
        zeros = {key: torch.zeros_like(p, requires_grad=False) for key in ("exp_avg", "exp_avg_sq")}
        optimizer.state[p] = {"step": torch.zeros((), device=p.device), **zeros}
    return optimizer
