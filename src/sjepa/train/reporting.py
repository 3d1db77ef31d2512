"""What training reports: the line of a logged interval, what an epoch holds, and refused audio."""

import numpy as np

from sjepa import distributed
from sjepa.audio.io import SAMPLE_RATE
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

MUCH_CROPPED = 0.5  # share of an epoch's audio that crops may leave out before it is worth a word
CLUSTERS_EVERY = 10  # logged lines between lines with every component's share


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
