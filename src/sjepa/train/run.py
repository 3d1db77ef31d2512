"""The state of a run in training: everything that is saved and restored together."""

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sjepa import distributed
from sjepa.audio.augment import augment, change_speed
from sjepa.config import Config
from sjepa.cuda_graphs import StepGraphs
from sjepa.errors import UserError
from sjepa.model import formats
from sjepa.model.encoder_folder import EncoderFolder
from sjepa.model.sjepa import SJEPA
from sjepa.phases import Phase
from sjepa.progress import say
from sjepa.runs import checkpoint
from sjepa.runs.alarms import Alarm
from sjepa.runs.encoder import Encoder
from sjepa.runs.folder import RunFolder
from sjepa.runs.heads import make_clusters_info
from sjepa.runs.steps import load_step
from sjepa.seeds import seed_from
from sjepa.targets.clusters import ClustersInfo, clusters_from_parts, save_clusters
from sjepa.targets.kinds import FeatureInputs
from sjepa.targets.layer import LayerChoice
from sjepa.targets.targets import Targets
from sjepa.train.compute import SideStream, compile_parts, should_compile
from sjepa.train.initial_encoder import read_initial_encoder
from sjepa.train.loss import frame_sums, masked_kl
from sjepa.train.metrics import Meter
from sjepa.train.optimizer import keep_state, make_optimizers, named_state
from sjepa.train.reduce import StepSum


@dataclass
class Run:
    """The contents of a checkpoint, and the objects that a process builds for them."""

    config: Config
    model: SJEPA
    layer: LayerChoice
    device: torch.device
    optimizers: list[torch.optim.Optimizer]
    frame_sums: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] = frame_sums
    masked_kl: Callable[[Tensor, Tensor, Tensor], Tensor] = masked_kl
    change_speed: Callable[[Tensor, Tensor, int], Tensor] = change_speed
    augment: Callable[[Tensor, Tensor, Tensor | None, bool], Tensor] = augment
    targets: Targets = field(init=False)
    update_targets: Callable[[Tensor], None] = field(init=False)
    step_sum: StepSum = field(init=False)
    stop_wish: Tensor = field(init=False)  # 1 if this rank was asked to stop; summed over ranks
    stop_wishes: Tensor = field(init=False)  # the sum over ranks
    meter: Meter = field(init=False)
    side_stream: SideStream = field(init=False)
    graphs: StepGraphs | None = None
    reference_set: Tensor | None = None  # int16 (B, N) on the host of the main rank, for effective ranks
    phase: int = 0  # the phase whose targets are installed; 0 before the first
    step: int = 0
    data_since: int = 0  # the step at which the run got its current audio
    position: tuple[int, int] = (0, 0)
    bad: list[str] = field(default_factory=list)  # unusable audio of this rank that is not counted yet
    listed: set[str] | None = None  # lines of the list of refused audio; read on first use
    bad_utterances: int = 0  # of all ranks
    log_bytes: int = 0
    saved_at: float = field(default_factory=time.monotonic)
    writer: checkpoint.Writer = field(default_factory=checkpoint.Writer)
    staging: checkpoint.Staging = field(default_factory=checkpoint.Staging)
    alarms: list[Alarm] = field(default_factory=list)  # alarms of the last logged line
    best_masked: float = 0.0  # best accuracy at masked frames of a logged line, since the targets changed

    @staticmethod
    def start(config: Config, device: torch.device) -> "Run":
        """Make a new run with random weights."""
        torch.manual_seed(config.seed)
        model = SJEPA(config.encoder, config.predictor, 1, config.train.visible_path).to(device)
        distributed.broadcast_module(model)
        run = Run(config, model, LayerChoice(config.layer), device, make_optimizers(config, model, device))
        for layer in model.encoder.encoder.layers:
            layer.recompute = config.train.recompute  # type: ignore[assignment]
        run.side_stream = SideStream(device)
        run.stop_wish, run.stop_wishes = torch.zeros(1, device=device), torch.zeros(1, device=device)
        if should_compile(config, device):
            compile_parts(model.encoder)
            model.predict = torch.compile(model.predict, dynamic=False)  # type: ignore[method-assign]
            run.frame_sums = torch.compile(frame_sums, dynamic=False)
            run.masked_kl = torch.compile(masked_kl, dynamic=False)
            run.change_speed = torch.compile(change_speed, dynamic=False)
            run.augment = torch.compile(augment, dynamic=False)
        return run

    def load_encoder_weights(self, source: str) -> None:
        """Load the weights of another encoder. Predictor and head keep their random weights."""
        weights = read_initial_encoder(source, self.config.encoder)
        formats.load_strictly(self.model.encoder, weights, source)

    @property
    def active_layer(self) -> int | None:
        """The layer of the target encoder that targets read, or None if they do not read the encoder."""
        return self.layer.active if self.targets.target_encoder is not None else None

    @property
    def next_layer(self) -> int:
        """The layer that targets read in the next step, if they read the encoder, or else that of the last check."""
        return self.layer.chosen if self.targets.online else self.layer.active

    def make_targets(self, phase: Phase) -> Targets:
        """Make the targets of a phase, not fitted yet. `same` means the targets of the previous phase."""
        number = self.config.fitted_phase(phase.number)
        settings = self.config.phases[number - 1]
        assert settings.targets != "same"
        # A moving average continues in the next phase. A frozen target encoder is replaced by the encoder as it is now.
        past = self.targets.target_encoder if self.phase and self.targets.online else None
        targets = Targets(
            settings.targets,
            FeatureInputs(past or self.model.encoder, self.config.mfcc, seed_from(self.config.seed, number)),
            self.config.gmm,
            k=settings.k,
            dimensions=settings.dimensions,
            directions=settings.directions,
            hard=settings.hard,
            temperature=settings.temperature,
            centred=settings.centred,
        )
        if should_compile(self.config, self.device):
            targets.compile(dynamic=False)
            if targets.target_encoder is not None:
                compile_parts(targets.target_encoder)
        return targets.to(self.device)

    def install(self, targets: Targets, phase: int, new_output: bool = True) -> None:
        """Use these targets from now on. With `new_output`, the head gets a new last layer for the new components."""
        self.targets, self.phase, self.best_masked = targets, phase, 0.0
        if targets.target_encoder is not None:  # the codebook fits this layer
            self.layer.hold()
        if new_output:
            torch.manual_seed(seed_from(self.config.seed, targets.components))
            self.model.replace_output(targets.components)
            distributed.broadcast_module(self.model.head.output)
            past = self.optimizers
            self.optimizers = make_optimizers(self.config, self.model, self.device)
            keep_state(past, self.optimizers)
        self.meter = Meter(targets.components, self.device)
        front = list(self.model.encoder.feature_extractor.parameters())
        in_front = set(front)
        behind = [p for p in self.model.parameters() if p not in in_front]
        self.step_sum = StepSum(behind, front, 2 + targets.statistics_size, self.device)
        self.update_targets = targets.update
        # Captured graphs hold the addresses of the old tensors.
        if should_compile(self.config, self.device):
            self.update_targets = torch.compile(targets.update, dynamic=False)
            self.graphs = StepGraphs()

    def set_data_start(self, step: int) -> None:
        """Set the step at which the run got its current audio. A position in other audio does not apply to it."""
        self.data_since = step
        if 0 < self.step <= step:
            self.position, self.bad_utterances = (self.position[0] + 1, 0), 0

    def save_is_due(self) -> bool:
        """Return whether a checkpoint is due by the clock of the main rank. All ranks get the same answer."""
        minutes = self.config.train.checkpoint_minutes
        return minutes > 0 and distributed.broadcast_object(time.monotonic() - self.saved_at > 60 * minutes)

    def save(self, folder: RunFolder, ended: int | None = None) -> None:
        """Write the encoder and a checkpoint on the main rank, in the background. `ended` is a phase that ends here.

        If the previous write failed, this one is waited for, and all ranks end if it fails too. At the end of a phase,
        it is always waited for.
        """
        finite = torch.stack([torch.isfinite(p).all() for p in self.model.parameters()]).all()
        if not bool(finite):
            raise UserError(f"the weights are not finite at step {self.step:,}: lower the learning rate")
        self.saved_at = time.monotonic()
        meter = self.meter.state()  # summed over ranks
        if distributed.is_main():
            parts = {
                "model": self.model.state_dict(),
                "targets": self.targets.state_dict(),
                "optimizer": named_state(self.model, self.optimizers),
                "meter": meter,
            }
            if self.reference_set is not None:
                parts["reference"] = {"waveforms": self.reference_set}
            state = {
                "position": self.position,
                **self.layer.state(),
                "bad_utterances": self.bad_utterances,
                "phase": self.phase,
                "log_bytes": self.log_bytes,
                "best_masked": self.best_masked,
            }
            clusters = make_clusters_info(self.config, self.phase, self.layer.active, self.step)
            self.writer.join()  # it reads the staged copies
            self.writer.start(partial(self.write, folder, self.staging.copy(parts), state, clusters, ended))
        distributed.run_on_main_rank(self.writer.raise_repeated if ended is None else self.writer.wait)

    def write(
        self,
        folder: RunFolder,
        parts: dict[str, dict[str, Tensor]],
        state: dict[str, Any],
        clusters: ClustersInfo,
        ended: int | None,
    ) -> None:
        """Write the encoder and a checkpoint. The tensors must not change in the meantime."""
        if ended is not None:  # before the checkpoint, which marks the phase as ended
            self.export(folder, parts, clusters, ended)
        checkpoint.save(folder, clusters.step, parts, state)
        if ended is None:
            self.export(folder, parts, clusters, ended)
        # Keep checkpoints at which the run changed: a damaged later one must not fall back to before the change.
        always = {phase.end for phase in self.config.schedule()} | set(folder.changed_steps)
        train = self.config.train
        checkpoint.prune(folder, clusters.step, train.keep_checkpoints, always, train.keep_every)

    def export(
        self, folder: RunFolder, parts: dict[str, dict[str, Tensor]], clusters: ClustersInfo, ended: int | None
    ) -> None:
        """Write the encoder with its mixture and head. At the end of a phase, also write the files of that phase."""
        encoder = formats.select_part(parts["model"], "encoder.")
        tensors = clusters_from_parts(parts["model"], parts["targets"], clusters)
        clusters = replace(clusters, encoder=formats.fingerprint_weights(encoder))
        settings = formats.to_hugging_face(self.config.encoder)
        try:
            places = [folder.encoder]
            if ended is not None:
                save_clusters(folder.codebook(ended), tensors, clusters)
                if ended < len(self.config.phases):
                    places.append(folder.phase_encoder(ended))
            for place in places:
                formats.save_folder(place, encoder, settings)
                save_clusters(EncoderFolder(place).clusters, tensors, clusters)
        except OSError as error:
            raise checkpoint.make_write_error("the encoder", clusters.step, folder, error) from error

    def repair_encoder(self, folder: RunFolder) -> None:
        """Write the encoder again if it cannot be loaded. The run is as restored from its newest checkpoint."""
        try:
            Encoder.from_pretrained(folder.encoder)
        except UserError:
            say(f"{folder.encoder} is missing or damaged: writing it again from the checkpoint of step {self.step:,}")
            parts = {"model": self.model.state_dict(), "targets": self.targets.state_dict()}
            clusters = make_clusters_info(self.config, self.phase, self.layer.active, self.step)
            with folder.lock():
                self.export(folder, parts, clusters, ended=None)

    def restore(self, folder: RunFolder, step: int | None = None) -> bool:
        """Restore the newest valid checkpoint, or the one of a step. Return False if there is none.

        The main rank chooses the checkpoint. If another rank cannot load it, all ranks raise UserError.
        """
        found = distributed.run_on_main_rank(
            lambda: checkpoint.load_latest(folder, training=True) if step is None else load_step(folder.path, step)
        )
        chosen = distributed.broadcast_object(found[1]["step"] if found is not None else None)
        if chosen is None:
            return False

        def load_chosen() -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
            try:
                return found or checkpoint.load(folder.checkpoint(chosen))
            except checkpoint.DamagedError as error:
                where = f"rank {distributed.rank()} on {platform.node()}"
                raise UserError(
                    f"{where} cannot load {folder.checkpoint(chosen)}, which the main rank can ({error}): is it on a "
                    "disk that all ranks share?"
                ) from error

        self.load_checkpoint(*distributed.run_on_all_ranks(load_chosen))
        return True

    def load_checkpoint(self, parts: dict[str, dict[str, Tensor]], state: dict[str, Any]) -> None:
        """Restore the state from the contents of a checkpoint."""
        self.step = state["step"]
        self.position = tuple(state["position"])
        self.layer.load(state)
        self.reference_set = parts.get("reference", {}).get("waveforms")
        self.bad_utterances, self.log_bytes = state["bad_utterances"], state["log_bytes"]
        self.install(self.make_targets(self.config.schedule()[state["phase"] - 1]), state["phase"])
        self.best_masked = state.get("best_masked", 0.0)
        self.model.load_state_dict(parts["model"])
        self.targets.load_state_dict(parts["targets"])
        self.meter.load(parts["meter"])
        for name, tensor in named_state(self.model, self.optimizers).items():
            tensor.copy_(parts["optimizer"][name])
