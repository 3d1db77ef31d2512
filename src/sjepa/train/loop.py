"""Pre-training: the paper's algorithm, both phases in one trajectory."""

import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sjepa import __version__, distributed
from sjepa.audio.io import SAMPLE_RATE
from sjepa.config import Config, all_differences, differences, to_toml
from sjepa.data.corpus import Corpus
from sjepa.data.corpus_mix import CorpusMix
from sjepa.data.loader import Batch, BatchReader, load, plan_batches, to_float
from sjepa.data.opening import end_to_end, open_corpus
from sjepa.data.plan import describe_repetition
from sjepa.data.sampler import BatchPlan
from sjepa.data.shard_cache import ShardCache
from sjepa.errors import UserError
from sjepa.model.frontend import STRIDE
from sjepa.phases import Phase
from sjepa.progress import Bar, bar, say
from sjepa.runs import checkpoint
from sjepa.runs.alarms import find_alarms, select_new
from sjepa.runs.audio import audio_sections, replace_audio
from sjepa.runs.folder import RunFolder
from sjepa.runs.history import finish_change, record_start, record_stop
from sjepa.seeds import seed_from
from sjepa.stopping import StoppedError, StopRequest, stop_requests
from sjepa.targets.fit import require_frames
from sjepa.targets.kinds import KINDS
from sjepa.targets.layer import measure_ranks
from sjepa.train.agreement import StopAgreement, check_shared, stop_if_asked
from sjepa.train.boundary import begin_phase, change_layer
from sjepa.train.branch import branch, check_directory
from sjepa.train.compute import autocast
from sjepa.train.extend import describe_extension, keep_earlier, keep_ended_phase, refuse_idle_change
from sjepa.train.metrics import Log, Speed
from sjepa.train.reference_set import draw_reference_set
from sjepa.train.run import Run
from sjepa.train.step import train_step

MUCH_CROPPED = 0.5  # share of an epoch's audio that crops may leave out before it is worth a word
CLUSTERS_EVERY = 10  # logged lines between lines with every component's share


@dataclass
class Training:
    """A run and what this process trains it with."""

    run: Run
    corpus: Corpus | CorpusMix
    folder: RunFolder
    log: Log
    noise: Tensor | None
    stop: StopAgreement
    progress: Bar
    show: bool


def pretrain(
    config: Config,
    data: str | Path,
    out: str | Path,
    show: bool = True,
    branch_from: Path | None = None,
    replace_data: bool = False,
    last_phase: int | None = None,
) -> bool:
    """Train an encoder on a folder of audio, or continue; True when the run is complete, False when it was stopped.

    A run that exists may get more steps and further phases, and with `replace_data` other audio. `last_phase` stops
    the run after that phase; then True means that the phase has ended.

    >>> from sjepa import RunFolder, pretrain
    >>> config = RunFolder("runs/mine").config()  # for a new run: load_preset("tiny")
    >>> pretrain(config, "speech", "runs/mine", show=False)
    runs/mine is complete
    12 utterances, 0.00 hours
    True
    """
    with stop_requests() as request:
        request.moment = "before the next step"
        order = Order(config, str(data), RunFolder(out), branch_from, replace_data, last_phase or len(config.phases))
        try:
            return run_to_end(order, request, show)
        except StoppedError:
            say(f"Stopped at step {RunFolder(out).step:,} of {config.steps:,}; the same command continues")
            return False


@dataclass(frozen=True)
class Order:
    """What is to be trained, on what and where."""

    config: Config
    data: str
    folder: RunFolder
    branch_from: Path | None
    replace_data: bool
    last_phase: int

    @property
    def phases(self) -> list[Phase]:
        return self.config.schedule()[: self.last_phase]


def run_to_end(order: Order, request: StopRequest, show: bool) -> bool:
    config, data, folder, settings = order.config, order.data, order.folder, order.config.batches
    device = distributed.setup(config.train.device)
    distributed.in_main_rank(lambda: prepare(folder, config, order.branch_from))
    check_shared(folder)
    stop_if_asked(request)
    if device.type == "cpu" and config.encoder.hidden_size >= 512:
        say("There is no GPU here: an encoder of this size trains very slowly; --preset tiny is made for a CPU")
    run = Run.start(config, device)
    with checkpoint.refuse_unfit(folder):
        restored = run.restore(folder, say)
    if restored:
        done = run.step >= order.phases[-1].end
        ended = "is complete" if run.step >= config.steps else f"has ended phase {order.last_phase}"
        say(f"{folder} {ended}" if done else f"Continuing {folder} at step {run.step:,}")
        if done and folder.data == data:  # nothing to read it for; other audio is read and refused
            return True
    elif config.init_from:
        run.begin_from(config.init_from)
        say(f"The encoder starts from {config.init_from}")
    kept = ShardCache(Path(settings.shard_cache), int(settings.shard_cache_gb * 1e9)) if settings.shard_cache else None
    corpus = open_corpus(data, settings.max_seconds, settings.cache, settings.memory_gb, show, kept)
    check_components(config, corpus.hours)
    stop_if_asked(request)
    with ExitStack() as holding:
        distributed.in_main_rank(lambda: holding.enter_context(folder.lock()))
        distributed.in_main_rank(lambda: open_folder(order, corpus.fingerprint(), run))
        if run.step >= order.phases[-1].end:
            return True
        if distributed.is_main():
            holding.enter_context(record_stop(folder, run, config.steps, request.signal_name))
        run.use_data_from(distributed.broadcast_object(audio_sections(folder.facts)[-1].since))
        holding.callback(run.writer.join)  # nothing is being written when the lock goes
        log = holding.enter_context(closing(Log(folder, run.log_bytes, run.step, config.train.wandb)))
        progress = holding.enter_context(bar("Training", config.steps, done=run.step, show=show))
        noise, stop = load_noise(config, device, show), StopAgreement(run, request)
        training = Training(run, corpus, folder, log, noise, stop, progress, show)
        # Without a break a run ends with its last phase, whose end is written before this ends.
        return all(train_phase(training, phase) for phase in order.phases if run.step < phase.end)


def train_phase(training: Training, phase: Phase) -> bool:
    """From where the run is to the end of a phase; False when it was stopped."""
    run, corpus, log = training.run, training.corpus, training.log
    config, world_size, rank = run.config, distributed.world_size(), distributed.rank()
    parts = config.train.accumulate
    plan = plan_batches(corpus, config.batches_in(phase.config), config.seed, world_size, parts)
    if run.step <= run.data_since:
        describe_plan(corpus, plan, log, run.step)
        if repeated := describe_repetition(audio_left(config, run.step), config.steps - run.step, corpus.hours):
            say(repeated)
    reader = BatchReader(
        corpus, config.mask, config.augment, seed=config.seed, rank=rank, world_size=world_size, accumulate=parts
    )
    distributed.in_main_rank(lambda: draw_reference(run, reader, plan))
    if run.phase != phase.number:
        if run.phase and config.batches_in(phase.config) != config.batches_in(config.phases[run.phase - 1]):
            run.position = (run.position[0] + 1, 0)  # the old position means nothing among batches of other sizes
        request = training.stop.request
        request.moment = "before the next step"
        begin_phase(run, phase, reader, plan, log, training.show, lambda: stop_if_asked(request))
    training.stop.request.moment = "after this step"
    speed = Speed(run.device)
    with closing(load(reader, plan, run.position, config.batches.workers, run.device)) as batches:
        while run.step < phase.end:
            step = run.step
            asked = time.perf_counter()
            batch = next(batches)
            speed.waited_since(asked)
            speed.audio += batch.seconds * world_size
            training.stop.ask()
            train_step(run, phase, batch, training.noise)
            speed.launched()
            run.step, run.position = step + 1, batch.position
            run.meter.add_crop(batch.cropped, batch.available)
            run.bad += batch.bad

            if phase.layer_check(step):
                before = run.layer.active
                check_layers(run, log)
                if run.targets.online and run.layer.active != before:
                    change_layer(run, before, reader, plan)
            training.progress.advance()
            last, stopping = run.step == phase.end, training.stop.reached()
            logging = run.step % config.train.log_every == 0 or last
            saving = (
                run.step % config.train.checkpoint_every == 0 or last or stopping or (logging and run.save_is_due())
            )
            if logging or saving or (world_size == 1 and run.bad):
                count_bad(run, corpus, training.folder)
            if logging:
                write_line(run, phase, log, speed, training.progress, batch)
            if saving:
                run.log_bytes = log.bytes
                run.save(training.folder, phase.number if last else None)
            if stopping and run.step < config.steps:
                distributed.in_main_rank(run.writer.wait)
                log.write("stopped", run.step)  # gone again when the run continues
                say(f"Stopped at step {run.step:,} of {config.steps:,}; the same command continues")
                return False
    return True


def audio_left(config: Config, step: int) -> float:
    """Seconds of audio that a run processes from a step on, repeated or not."""
    steps = [(phase, phase.end - max(phase.start, step)) for phase in config.schedule()]
    return sum(max(0, left) * config.batches_in(phase.config).seconds for phase, left in steps)


def check_components(config: Config, hours: float) -> None:
    """Refuse a codebook that so much audio cannot fill before anything is written, not when its phase begins."""
    gmm = config.gmm
    frames = min(gmm.reservoir, int(min(hours, gmm.fit_hours) * 3600 * SAMPLE_RATE / STRIDE))
    for phase in config.phases:
        if phase.targets != "same" and KINDS[phase.targets].fits_frames:
            require_frames(phase.k, frames)


def prepare(folder: RunFolder, config: Config, branch_from: Path | None) -> None:
    """Branch where that is asked for and not done yet; refuse a directory that is not for this run."""
    if branch_from is not None and not folder.exists:
        branch(branch_from, folder.path, config)
        say(f"{folder} branches from {branch_from} at the end of its first phase")
    check_directory(folder, config)


def open_folder(order: Order, corpus: str, run: Run) -> None:
    """Make the run's directory, or change the run as ordered and check that it was trained on this audio."""
    config, folder, step = order.config, order.folder, run.step
    past, changed, facts, said = config, [], {}, []
    if not folder.exists:
        folder.create(config, order.data, corpus)
    else:
        finish_change(folder)
        past = folder.config()
        changed = [tuple(difference) for difference in all_differences(past, config)]
        if folder.facts.get("corpus") != corpus and order.replace_data:
            refuse_idle_change(folder, config, step)
            facts = replace_audio(folder.facts, order.data, corpus, step)
            changed += [("data", folder.data, order.data), ("corpus", folder.facts.get("corpus"), corpus)]
            said.append(f"From step {step:,} on the audio is {order.data}; before it was {folder.data}")
        else:
            folder.check_corpus(corpus)
    if step >= order.phases[-1].end:
        return
    extended = bool(differences(past, config))
    if extended or facts:
        kept = keep_earlier(folder, len(past.phases), step)
        keep_ended_phase(folder, past, config, step)
        said = [*describe_extension(past, config, step), *said, *([f"The run as it was: {kept}"] if kept else [])]
    machine = {"world_size": distributed.world_size(), "device": describe_device(run.device)}
    versions = {"sjepa": __version__, "torch": torch.__version__}
    record_start(folder, step, machine | versions, changed, to_toml(config) if extended else None, facts)
    for line in said:
        say(line)


def describe_device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def draw_reference(run: Run, reader: BatchReader, plan: BatchPlan) -> None:
    """Draw the utterances on which effective ranks are measured, unless the run has them."""
    if run.reference_set is None:
        run.reference_set = draw_reference_set(reader, plan, run.config.layer.utterances)


def check_layers(run: Run, log: Log) -> None:
    """Measure every layer's effective rank; the highest, smoothed, is the active layer from the next step.

    The main rank measures alone, so that the result does not depend on the number of ranks. All have the same encoder.
    """
    encoder = run.targets.target_encoder or run.model.encoder
    ranks: list[float] | None = None
    if distributed.is_main():
        assert run.reference_set is not None
        clean = to_float(run.reference_set.to(run.device))
        ranks = measure_ranks(encoder, clean, run.config.layer.frames, seed_from(run.config.seed))
    ranks = distributed.broadcast_object(ranks)
    if ranks is None:
        raise UserError(f"the encoder's features are no longer finite at step {run.step:,}: lower the learning rate")
    if run.targets.online or run.targets.target_encoder is None:  # an offline codebook stays with its layer
        run.layer.observe(ranks, used=run.targets.online)
    log.write(
        "layers",
        run.step,
        phase=run.phase,
        effective_ranks=ranks,
        smoothed=run.layer.smoothed,
        active_layer=run.layer.active,
    )


def write_line(run: Run, phase: Phase, log: Log, speed: Speed, progress: Bar, batch: Batch) -> None:
    """Log what happened since the last line; dead components start anew here, where that is asked for."""
    step = run.step - 1
    values = {"phase": phase.number, "epoch": run.position[0], "lr": phase.lr(step)} | run.meter.read()
    values |= {
        "visible_loss": phase.visible_loss(step),
        "augmented": phase.augments(step),
        "decay": phase.decay(step) if run.targets.online else None,
        "active_layer": run.active_layer,
        "effective_rank": run.layer.smoothed,
    }
    share, dead = values.pop("share"), values.pop("dead")
    if dead and run.targets.online and run.config.gmm.reseed:
        with autocast(run.config, run.device):
            values["reseeded"] = run.targets.reseed(
                dead, batch.clean, run.active_layer, seed_from(run.config.seed, step)
            )
    if run.step % (CLUSTERS_EVERY * run.config.train.log_every) == 0 or run.step == phase.end:
        log.write("clusters", run.step, phase=phase.number, share=share)
    pace = values["speed"] = speed.read()
    if "ranks" in pace:
        values["rank_speed"] = pace.pop("ranks")
    done, waiting = (run.step - phase.start) / phase.config.steps, pace["waiting"] if run.device.type == "cuda" else 0.0
    found = find_alarms(values, run.targets.components, done, waiting)
    log.write("train", run.step, **values, alarms=found)
    accuracy = f"masked {values['accuracy_masked']:.0%}  visible {values['accuracy_visible']:.0%}"
    entropy = f"q {values['target_entropy']:.2f} p {values['predictor_entropy']:.2f} bits"
    progress.advance(0, f"loss {values['loss']:.3f}  {accuracy}  {entropy}  {pace['audio_per_second']:,.0f} s/s")
    for alarm in select_new(found, run.alarms):  # said once while it lasts
        progress.say(f"step {run.step:,}: {alarm['message']}")
    run.alarms = found
    if values["bad_in_row"] >= run.config.train.bad_steps:
        raise UserError(
            f"{values['bad_in_row']} steps in a row had no finite gradient, up to step {run.step:,}: "
            "lower the learning rate; the last checkpoint is good"
        )


def describe_plan(corpus: Corpus | CorpusMix, plan: BatchPlan, log: Log, step: int) -> None:
    """Say and log what an epoch hears of the corpus."""
    epoch = plan.epoch(0)
    available = corpus.length[epoch.utterances].sum(dtype=np.int64) / SAMPLE_RATE
    heard = epoch.total_samples() / SAMPLE_RATE
    facts = {"utterances": len(corpus), "hours": corpus.hours, "batches": len(epoch), "epoch_hours": heard / 3600}
    # Nothing is padded: a batch has one length.
    loss = {"crop_loss": 1 - heard / available, "padding_waste": 0.0, "too_short": plan.too_short}
    log.write("data", step, **facts, **loss)
    short = f"; {plan.too_short:,} utterances are shorter than the shortest bucket" if plan.too_short else ""
    say(
        f"{len(epoch):,} batches an epoch; crops leave out {loss['crop_loss']:.1%} of it, other stretches each time, "
        f"and nothing is padded{short}"
    )
    if loss["crop_loss"] > MUCH_CROPPED:
        say(f"  That is much: {', or '.join(against_crops(corpus))}")


def against_crops(corpus: Corpus | CorpusMix) -> list[str]:
    """What makes crops leave out less, by what the corpus was opened from."""
    parts = corpus.corpora if isinstance(corpus, CorpusMix) else (corpus,)
    ways = ["use longer or more buckets (--batches.buckets)"]
    if not all(part.indexed for part in parts):
        ways.append("cut the files of the folder shorter (--batches.max-seconds)")
    if any(part.indexed for part in parts):
        ways.append("cut the index shorter (sjepa index --max-seconds, --cut-transcribed)")
    return ways


def count_bad(run: Run, corpus: Corpus | CorpusMix, folder: RunFolder) -> None:
    """List what was left out, each file and reason once, and stop if too many utterances are damaged."""
    found = [line for lines in distributed.gather_objects(run.bad) for line in lines]
    run.bad = []
    if distributed.is_main():
        candidates = found
        if run.listed is None:  # the first time, also what was refused when the corpus was opened
            run.listed = set(folder.refused.read_text("utf-8").split("\n")) if folder.refused.exists() else set()
            candidates = [*corpus.refused, *found]
        new = [line for line in dict.fromkeys(candidates) if line not in run.listed]
        if new:
            run.listed.update(new)
            with folder.refused.open("a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in new)
    run.bad_utterances += len(found)
    # Each utterance once per epoch.
    allowed = run.config.batches.bad_share * len(corpus) * (run.position[0] + 1)
    if found and run.bad_utterances > max(1.0, allowed):
        raise UserError(
            f"{run.bad_utterances} utterances could not be used, more than batches.bad_share allows; "
            f"see {folder.refused}"
        )


def load_noise(config: Config, device: torch.device, show: bool) -> Tensor | None:
    """All noise recordings end to end, int16 on the device; none where no folder, index or shards are set."""
    if not config.augment.noise:
        return None
    say(f"Noise from {config.augment.noise}:")
    recordings = end_to_end(open_corpus(config.augment.noise, config.batches.max_seconds, "memory", 0.0, show))
    buckets = [length for phase in config.phases for length in config.batches_in(phase).buckets]
    longest = round(max(buckets) * SAMPLE_RATE)  # shorter noise is repeated
    return torch.from_numpy(np.tile(recordings, -(-longest // len(recordings)))).to(device)
