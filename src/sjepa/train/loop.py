"""Pre-training: the paper's algorithm, all phases in one run."""

import faulthandler
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sjepa import distributed
from sjepa.audio.io import SAMPLE_RATE
from sjepa.config import Config, all_differences, check_augmentation, differences
from sjepa.data.corpus import Corpus
from sjepa.data.corpus_mix import CorpusMix
from sjepa.data.loader import BatchConfig, BatchReader, load, plan_batches, to_float
from sjepa.data.opening import concatenate_audio, open_corpus
from sjepa.data.sampler import BatchPlan
from sjepa.data.shard_cache import ShardCache
from sjepa.device import explain_busy_cpu
from sjepa.errors import UserError
from sjepa.files import refuse_unreadable_weights
from sjepa.phases import Phase
from sjepa.progress import Bar, bar, hide_bars, say
from sjepa.runs import checkpoint
from sjepa.runs.audio import audio_sections, replace_audio
from sjepa.runs.folder import RunFolder
from sjepa.runs.history import finish_change, record_start, record_stop
from sjepa.runs.locate import find_licence
from sjepa.seeds import seed_from
from sjepa.settings_file import to_toml
from sjepa.stopping import StoppedError, StopRequest, nothing_unsaved, stop_requests
from sjepa.targets.fit import require_frames
from sjepa.targets.kinds import KINDS
from sjepa.targets.layer import measure_effective_ranks
from sjepa.train.agreement import StopAgreement, check_same_audio, check_shared_disk, stop_if_asked
from sjepa.train.boundary import begin_phase, move_targets
from sjepa.train.branch import branch, check_directory, name_first_phases
from sjepa.train.estimate import LARGEST_ON_CPU, describe_repetition
from sjepa.train.extend import describe_extension, keep_earlier, keep_ended_phase, refuse_idle_change
from sjepa.train.held_out import draw_held_out, open_held_out
from sjepa.train.metrics import Log, Speed
from sjepa.train.reference_set import draw_reference_set
from sjepa.train.reporting import describe_epoch, log_interval, record_bad_audio
from sjepa.train.run import Run
from sjepa.train.step import train_step
from sjepa.version import __version__


@dataclass
class Training:
    """A run, and everything that this process needs to train it."""

    run: Run
    corpus: Corpus | CorpusMix
    folder: RunFolder
    log: Log
    noise: Tensor | None
    plans: Mapping[BatchConfig, BatchPlan]
    held_out: Corpus | CorpusMix | None
    """Audio that is not trained on, on the main rank."""
    stop: StopAgreement
    progress: Bar


def pretrain(
    config: Config,
    data: str | Path,
    out: str | Path,
    show: bool = True,
    branch_from: Path | None = None,
    replace_data: bool = False,
    last_phase: int | None = None,
) -> bool:
    """Train an encoder on a folder of audio, or continue a run. Return False if it was stopped before its end.

    An existing run may get more steps and new phases, and other audio with `replace_data`. `last_phase` ends the run
    after that phase; the result is then True if the phase has ended.

    >>> from sjepa import RunFolder, pretrain
    >>> config = RunFolder("runs/mine").config()  # for a new run: load_preset("tiny")
    >>> pretrain(config, "speech", "runs/mine", show=False)
    runs/mine is complete
    12 utterances, 0.00 hours
    True
    """
    with stop_requests() as request, nullcontext() if show else hide_bars():
        request.moment = "before the next step"
        job = Job(config, str(data), RunFolder(out), branch_from, replace_data, last_phase or len(config.phases))
        try:
            run_to_end(job, request)
        except StoppedError:
            step = max(RunFolder(out).checkpoint_steps, default=0)
            say(f"Stopped at step {step:,} of {config.steps:,}; the same command continues")
            return False
    return True


@dataclass(frozen=True)
class Job:
    """What to train, on which audio, and where."""

    config: Config
    data: str
    folder: RunFolder
    branch_from: Path | None
    replace_data: bool
    last_phase: int

    @property
    def phases(self) -> list[Phase]:
        return self.config.schedule()[: self.last_phase]


def run_to_end(job: Job, request: StopRequest) -> None:
    """Open the run, the audio and the log, then train the phases that have not ended."""
    config, data, folder, settings = job.config, job.data, job.folder, job.config.batches
    device = distributed.setup(config.train.device)
    if device.type == "cuda":
        faulthandler.enable()  # if the driver crashes, print where every thread is
    distributed.run_on_main_rank(lambda: prepare(folder, config, job.branch_from))
    check_shared_disk(folder)
    stop_if_asked()
    if device.type == "cpu" and config.encoder.hidden_size > LARGEST_ON_CPU:
        say("There is no GPU: an encoder of this size trains very slowly on a CPU. --preset tiny is made for CPUs")
    run = Run.start(config, device)
    known = folder.checkpoint_steps
    with checkpoint.refuse_unfit(folder):
        restored = run.restore(folder)
    done = restored and run.step >= job.phases[-1].end
    if not done:
        distributed.run_on_main_rank(folder.check_lock)  # now, because decoding the audio may take long
    if restored:
        ended = "is complete" if run.step >= config.steps else f"has ended phase {job.last_phase}"
        say(f"{folder} {ended}" if done else f"Continuing {folder} at step {run.step:,}")
        if done:
            distributed.run_on_main_rank(lambda: run.repair_encoder(folder))
            if folder.data == data:  # no need to read the audio; other audio is read and refused
                return
    else:
        if folder.exists:
            say(f"{folder} ended before its first checkpoint, so it starts again at step 0")
        check_augmentation(config)
        if config.init_from:
            run.load_encoder_weights(config.init_from)
            say(f"The encoder starts from {config.init_from}")
    kept = ShardCache(Path(settings.shard_cache), int(settings.shard_cache_gb * 1e9)) if settings.shard_cache else None
    alone = distributed.world_size() == 1  # several ranks stop together, once they have read the audio
    with nothing_unsaved() if alone else nullcontext():
        corpus = open_corpus(data, settings.max_seconds, settings.cache, settings.memory_gb, kept)
        fingerprint = corpus.fingerprint()
        check_same_audio(fingerprint)
        plans = plan_phases(job, run.step, corpus)
        check_components(config, plans)
        held_out = open_held_out(config, corpus)
    stop_if_asked()
    with ExitStack() as holding:
        distributed.run_on_main_rank(lambda: holding.enter_context(folder.lock()))
        distributed.run_on_main_rank(lambda: refuse_trained_meanwhile(folder, known))
        distributed.run_on_main_rank(lambda: open_folder(job, fingerprint, run))
        if run.step >= job.phases[-1].end:
            return
        if distributed.is_main():
            holding.enter_context(record_stop(folder, lambda: run.step, config.steps, request.signal_name))
        run.set_data_start(distributed.broadcast_object(audio_sections(folder.facts)[-1].since))
        holding.callback(run.writer.join)  # finish writing before the lock is released
        log = holding.enter_context(closing(Log(folder, run.log_bytes, run.step, config.train.wandb)))
        if device.type == "cpu":
            explain_busy_cpu()
        progress = holding.enter_context(bar("Training", config.steps, done=run.step))
        noise, stop = load_noise(config, device), StopAgreement(run, request)
        training = Training(run, corpus, folder, log, noise, plans, held_out, stop, progress)
        for phase in job.phases:
            if run.step < phase.end:
                train_phase(training, phase)  # its end is saved before this returns


def train_phase(training: Training, phase: Phase) -> None:
    """Train from the current step to the end of a phase. Raise StoppedError if the run is stopped before its end."""
    run, corpus, log = training.run, training.corpus, training.log
    config, world_size, rank = run.config, distributed.world_size(), distributed.rank()
    parts = config.train.accumulate
    plan = training.plans[config.batches_in(phase.config)]
    if run.step <= run.data_since:
        describe_epoch(corpus, plan, log, run.step)
        if repeated := describe_repetition(config.audio_seconds(run.step), config.steps - run.step, corpus.hours):
            say(repeated)
    reader = BatchReader(
        corpus, config.mask, config.augment, seed=config.seed, rank=rank, world_size=world_size, accumulate=parts
    )
    distributed.run_on_main_rank(lambda: draw_reference(run, reader, plan))
    measured = draw_held_out(run, training.held_out)
    if run.phase != phase.number:
        if run.phase and config.batches_in(phase.config) != config.batches_in(config.phases[run.phase - 1]):
            run.position = (run.position[0] + 1, 0)  # a position does not apply to batches of another size
        request = training.stop.request
        request.moment = "before the next step"
        begin_phase(run, phase, reader, plan, log)
        training.progress.restart_estimate()  # the fit is no step, and the steps of each phase take a different time
    training.stop.request.moment = "after this step"
    speed = Speed(run.device)

    with closing(load(reader, plan, run.position, config.batches.workers, run.device)) as batches:
        while run.step < phase.end:
            step = run.step
            asked = time.perf_counter()
            try:
                batch = next(batches)
                speed.count_wait(asked)
                # Not after the last step, because a checkpoint names the layer that its mixture has read.
                move_targets(run, phase, reader, plan)
            except (UserError, StoppedError):
                if world_size == 1:
                    save_unsaved(training, phase)
                raise
            speed.audio += batch.seconds * world_size
            training.stop.ask()
            train_step(run, phase, batch, training.noise)
            speed.mark_launch()
            run.step, run.position = step + 1, batch.position
            run.meter.add_crop(batch.cropped, batch.available)
            run.bad += batch.bad

            if phase.checks_layers(step):
                check_layers(run, log)
                if measured is not None:
                    log.write("held_out", run.step, phase=phase.number, **measured.measure(run))
            training.progress.advance()
            last, stopping = run.step == phase.end, training.stop.is_reached()
            logging = run.step % config.train.log_every == 0 or last
            saving = (
                run.step % config.train.checkpoint_every == 0 or last or stopping or (logging and run.save_is_due())
            )
            recording = logging or saving or (world_size == 1 and bool(run.bad))
            too_much_bad = recording and record_bad_audio(run, corpus, plan, training.folder)
            if logging:
                log_interval(run, phase, log, speed, training.progress, batch)
            if saving or too_much_bad:
                run.log_bytes = log.bytes
                run.save(training.folder, phase.number if last else None)
            if too_much_bad:
                distributed.run_on_main_rank(run.writer.wait)
                raise UserError(
                    f"{run.bad_utterances} utterances could not be used, more than batches.bad_share = "
                    f"{config.batches.bad_share:g} allows; see {training.folder.refused}. To continue without them, "
                    "give a larger --batches.bad-share"
                )
            if stopping and run.step < config.steps:
                distributed.run_on_main_rank(run.writer.wait)
                log.write("stopped", run.step)  # removed when the run continues
                raise StoppedError


def save_unsaved(training: Training, phase: Phase) -> None:
    """Save the steps since the last checkpoint, in a single process that gets no further batch."""
    run, folder = training.run, training.folder
    run.writer.wait()
    if run.step > phase.start and run.step not in folder.checkpoint_steps:
        plan = training.plans[run.config.batches_in(phase.config)]
        record_bad_audio(run, training.corpus, plan, folder)
        run.log_bytes = training.log.bytes
        run.save(folder)
        run.writer.wait()


def plan_phases(job: Job, step: int, corpus: Corpus | CorpusMix) -> dict[BatchConfig, BatchPlan]:
    """Plan the batches of all phases that have not ended. Raise UserError now if the audio cannot fill a batch."""
    config, world_size = job.config, distributed.world_size()
    wanted = {config.batches_in(phase.config) for phase in job.phases if step < phase.end}
    return {each: plan_batches(corpus, each, config.seed, world_size, config.train.accumulate) for each in wanted}


def check_components(config: Config, plans: Mapping[BatchConfig, BatchPlan]) -> None:
    """Raise UserError now if the audio has too few frames for the codebook of any phase that has not ended."""
    gmm = config.gmm
    frames = {each: min(gmm.reservoir, plan.epoch(0).count_frames(gmm.fit_hours)) for each, plan in plans.items()}
    for phase in config.phases:
        batches = config.batches_in(phase)
        if batches in frames and phase.targets != "same" and KINDS[phase.targets].fits_frames:
            require_frames(phase.k, frames[batches])


def prepare(folder: RunFolder, config: Config, branch_from: Path | None) -> None:
    """Branch if requested and not done yet. Raise UserError if the folder does not belong to this run."""
    refuse_unreadable_weights(folder.path)
    if branch_from is not None and not folder.exists:
        phases = branch(branch_from, folder.path, config)
        say(f"{folder} branches from {branch_from} at the end of {name_first_phases(phases)}")
    check_directory(folder, config)


def refuse_trained_meanwhile(folder: RunFolder, known: list[int]) -> None:
    """Raise UserError if another process has trained the run since this one restored it, without a lock until now."""
    if folder.checkpoint_steps != known:
        raise UserError(
            f"another process has trained {folder} while this one was reading the audio: run the same command again"
        )


def open_folder(job: Job, corpus: str, run: Run) -> None:
    """Create the run folder, or change the run as requested. Check that it was trained on this audio."""
    config, folder, step = job.config, job.folder, run.step
    past, changed, facts, messages = config, [], {}, []
    check_directory(folder, config)  # again, because another process may have changed the run since
    if not folder.exists:
        folder.create(config, job.data, corpus, find_licence(config.init_from) if config.init_from else "")
    else:
        finish_change(folder)
        past = folder.config()
        changed = [tuple(difference) for difference in all_differences(past, config)]
        if folder.facts.get("corpus") != corpus and job.replace_data:
            refuse_idle_change(folder, config, step)
            facts = replace_audio(folder.facts, job.data, corpus, step)
            changed += [("data", folder.data, job.data), ("corpus", folder.facts.get("corpus"), corpus)]
            messages.append(f"From step {step:,} on, the audio is {job.data}; before, it was {folder.data}")
        else:
            folder.check_corpus(corpus, job.data)
    if step >= job.phases[-1].end:
        return
    extended = bool(differences(past, config))
    if extended or facts:
        kept = keep_earlier(folder, len(past.phases), step)
        keep_ended_phase(folder, past, config, step)
        messages = [
            *describe_extension(past, config, step),
            *messages,
            *([f"The run as it was: {kept}"] if kept else []),
        ]
    machine = {"world_size": distributed.world_size(), "device": describe_device(run.device)}
    versions = {"sjepa": __version__, "torch": torch.__version__}
    record_start(folder, step, machine | versions, changed, to_toml(config) if extended else None, facts)
    for line in messages:
        say(line)


def describe_device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def draw_reference(run: Run, reader: BatchReader, plan: BatchPlan) -> None:
    """Draw the utterances for effective ranks, unless the run already has them."""
    if run.reference_set is None:
        run.reference_set = draw_reference_set(reader, plan, run.config.layer.utterances)


def check_layers(run: Run, log: Log) -> None:
    """Measure the effective rank of every layer. Online targets read the highest smoothed one from the next step.

    The measured encoder is the one that targets read next: the moving average of online targets, otherwise the encoder
    in training, which the next phase copies. An offline codebook keeps its layer.
    Only the main rank measures, so that the result does not depend on the world size. All ranks have the same encoder.
    """
    encoder = (run.targets.target_encoder if run.targets.online else None) or run.model.encoder
    effective_ranks: list[float] | None = None
    if distributed.is_main():
        assert run.reference_set is not None
        clean = to_float(run.reference_set.to(run.device))
        effective_ranks = measure_effective_ranks(encoder, clean, run.config.layer.frames, seed_from(run.config.seed))
    effective_ranks = distributed.broadcast_object(effective_ranks)
    if effective_ranks is None:
        raise UserError(f"the features of the encoder are not finite at step {run.step:,}: lower the learning rate")
    run.layer.observe(effective_ranks, used=run.targets.online)
    log.write(
        "layers",
        run.step,
        phase=run.phase,
        effective_ranks=effective_ranks,
        smoothed=run.layer.smoothed,
        active_layer=run.next_layer,
    )


def load_noise(config: Config, device: torch.device) -> Tensor | None:
    """Return all noise recordings, concatenated, as int16 on the device. None if the config names no noise."""
    if not config.augment.noise:
        return None
    say(f"Noise from {config.augment.noise}:")
    recordings = concatenate_audio(open_corpus(config.augment.noise, config.batches.max_seconds, "memory", 0.0))
    buckets = [length for phase in config.phases for length in config.batches_in(phase).buckets]
    longest = round(max(buckets) * SAMPLE_RATE)  # shorter noise is repeated
    return torch.from_numpy(np.tile(recordings, -(-longest // len(recordings)))).to(device)
