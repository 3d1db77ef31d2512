"""Log and print the progress of training: intervals, the contents of an epoch, and unusable audio."""

import numpy as np

from sjepa import distributed
from sjepa.audio.io import SAMPLE_RATE
from sjepa.counts import format_count
from sjepa.data.corpus import Corpus
from sjepa.data.corpus_mix import CorpusMix
from sjepa.data.loader import Batch
from sjepa.data.sampler import BatchPlan
from sjepa.errors import UserError
from sjepa.phases import Phase
from sjepa.progress import Bar, say
from sjepa.runs.alarms import find_alarms, select_new
from sjepa.runs.folder import RunFolder
from sjepa.seeds import seed_from
from sjepa.train.compute import autocast
from sjepa.train.metrics import Log, Speed
from sjepa.train.run import Run

MUCH_CROPPED = 0.5  # print a hint if crops leave out more than this share of the audio
CLUSTERS_EVERY = 10  # log the share of every component once per this many lines


def log_interval(run: Run, phase: Phase, log: Log, speed: Speed, progress: Bar, batch: Batch) -> None:
    """Log the interval since the last line. Restart dead components if `gmm.reseed` is set."""
    step = run.step - 1
    values = {"phase": phase.number, "epoch": run.position[0], "lr": phase.lr(step)} | run.meter.read()
    values |= {
        "visible_loss": phase.uses_visible_loss(step),
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
    found = find_alarms(values, run.targets.components, done, waiting, run.best_masked)
    run.best_masked = max(run.best_masked, values["accuracy_masked"])
    log.write("train", run.step, **values, alarms=found)
    accuracy = f"masked {values['accuracy_masked']:.0%}  visible {values['accuracy_visible']:.0%}"
    entropy = f"q {values['target_entropy']:.2f} p {values['predictor_entropy']:.2f} bits"
    progress.advance(0, f"loss {values['loss']:.3f}  {accuracy}  {entropy}  {pace['audio_per_second']:,.0f} s/s")
    for alarm in select_new(found, run.alarms):  # print an alarm once while it lasts
        progress.say(f"step {run.step:,}: {alarm['message']}")
    run.alarms = found
    if values["bad_in_row"] >= run.config.train.bad_steps:
        raise UserError(
            f"{values['bad_in_row']} consecutive steps up to step {run.step:,} had no finite gradient: start a new run "
            "with a lower learning rate, or continue from the last checkpoint with a larger --train.bad-steps"
        )


def describe_epoch(corpus: Corpus | CorpusMix, plan: BatchPlan, log: Log, step: int) -> None:
    """Print and log how much of the corpus an epoch uses."""
    epoch = plan.epoch(0)
    available = corpus.length[epoch.utterances].sum(dtype=np.int64) / SAMPLE_RATE
    used = epoch.total_samples() / SAMPLE_RATE
    facts = {"utterances": len(corpus), "hours": corpus.hours, "batches": len(epoch), "epoch_hours": used / 3600}
    # Nothing is padded: a batch has one length.
    loss = {"crop_loss": 1 - used / available, "padding_waste": 0.0, "too_short": plan.too_short}
    log.write("data", step, **facts, **loss)
    short = ""
    if plan.too_short:
        shortest = plan.edges[0] / SAMPLE_RATE
        count = format_count(plan.too_short, "utterance")
        short = f"; not used: {count} shorter than the shortest bucket ({shortest:g} s)"
    say(
        f"{format_count(len(epoch), 'batch', 'batches')} per epoch, without padding; crops leave out "
        f"{loss['crop_loss']:.1%} of the audio, a different part in each epoch{short}"
    )
    if available < plan.seconds:
        seconds = f"{available:,.0f} s of audio, less than a batch ({plan.seconds:,.0f} s)"
        say(f"  An epoch has {seconds}: lower --batches.seconds")
    elif loss["crop_loss"] > MUCH_CROPPED:
        say(f"  To leave out less, {', or '.join(suggest_less_cropping(corpus))}")


def suggest_less_cropping(corpus: Corpus | CorpusMix) -> list[str]:
    """Return ways to leave out less audio, depending on how the corpus was opened."""
    parts = corpus.corpora
    ways = ["use longer or more buckets (--batches.buckets)"]
    if not all(part.is_cut for part in parts):
        ways.append("cut the files of the folder shorter (--batches.max-seconds)")
    if any(part.is_cut for part in parts):
        ways.append("cut the index shorter (sjepa index --max-seconds, --cut-transcribed)")
    return ways


def record_bad_audio(run: Run, corpus: Corpus | CorpusMix, plan: BatchPlan, folder: RunFolder) -> bool:
    """List unusable audio, each file and reason once. Return whether there is more of it than the run accepts."""
    found = [line for lines in distributed.gather_objects(run.bad) for line in lines]
    run.bad = []
    if distributed.is_main():
        candidates = found
        if run.listed is None:  # the first time, also add what was refused when the corpus was opened
            run.listed = set(folder.refused.read_text("utf-8").split("\n")) if folder.refused.exists() else set()
            candidates = [*corpus.refused, *found]
        new = [line for line in dict.fromkeys(candidates) if line not in run.listed]
        if new:
            run.listed.update(new)
            with folder.refused.open("a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in new)
    run.bad_utterances += len(found)
    allowed = run.config.batches.bad_share * sum(count * share for count, share in plan.shares)  # in one epoch
    if not found or run.bad_utterances <= max(1.0, allowed):
        return False
    seconds = run.config.audio_seconds(run.data_since) - run.config.audio_seconds(run.step)
    epochs = 1 + int(seconds * SAMPLE_RATE / plan.epoch(0).total_samples())  # each utterance counts once per epoch
    return run.bad_utterances > max(1.0, allowed * epochs)
