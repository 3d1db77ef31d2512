"""Measure masked prediction on held-out audio, and on training audio for comparison.

If only the training audio improves, the encoder memorises its corpus.
"""

import numpy as np
import torch
from torch import Tensor

from sjepa import distributed
from sjepa.audio.frames import frame_count
from sjepa.audio.io import SAMPLE_RATE
from sjepa.config import Config
from sjepa.data.corpus import Corpus
from sjepa.data.corpus_mix import CorpusMix
from sjepa.data.loader import BatchReader, to_float
from sjepa.data.masking import block_mask
from sjepa.data.opening import open_corpus
from sjepa.errors import UserError
from sjepa.progress import say
from sjepa.train.loss import SUMS, frame_sums
from sjepa.train.reference_set import STREAM, draw_crops
from sjepa.train.run import Run

CHUNK = 16  # utterances at a time


def open_held_out(config: Config, corpus: Corpus | CorpusMix) -> Corpus | CorpusMix | None:
    """Open the held-out audio on the main rank, if there is any. Raise UserError if it is the audio of training."""
    path = config.train.held_out

    def open_it() -> Corpus | CorpusMix:
        say(f"Held-out audio of {path}:")
        found = open_corpus(path, config.batches.max_seconds, "none", 0.0)
        if not {part.fingerprint() for part in found.corpora}.isdisjoint(part.fingerprint() for part in corpus.corpora):
            raise UserError(
                f"train.held_out must be audio that the run does not train on, but {path} is its training audio"
            )
        return found

    return distributed.run_on_main_rank(open_it) if path else None


def draw_held_out(run: Run, corpus: Corpus | CorpusMix | None) -> "HeldOut | None":
    """Draw crops of held-out audio on the main rank, if there is any."""
    return distributed.run_on_main_rank(lambda: HeldOut(run, corpus) if corpus is not None else None)


class HeldOut:
    """Crops of held-out audio, and the reference set of the run: as many, as long, with the same masks."""

    def __init__(self, run: Run, corpus: Corpus | CorpusMix):
        assert run.reference_set is not None
        config, (wanted, samples) = run.config, run.reference_set.shape
        long_enough = np.flatnonzero(corpus.length >= samples)
        if not len(long_enough):
            raise UserError(f"every utterance of {config.train.held_out} is shorter than {samples / SAMPLE_RATE:g} s")
        reader = BatchReader(corpus, config.mask, config.augment, seed=config.seed)
        self.held_out = draw_crops(reader, long_enough, samples, wanted)
        self.training = run.reference_set[: len(self.held_out)]
        generator = np.random.default_rng((config.seed, STREAM))
        masks = [block_mask(frame_count(samples), config.mask, generator) for _ in self.held_out]
        self.masks = torch.from_numpy(np.stack(masks))

    def measure(self, run: Run) -> dict[str, float]:
        """Return KL and accuracy at masked frames."""
        training, held_out = (measure_masked(run, audio, self.masks) for audio in (self.training, self.held_out))
        return {
            "kl_training": training[0],
            "kl_held_out": held_out[0],
            "accuracy_training": training[1],
            "accuracy_held_out": held_out[1],
        }


@torch.no_grad()
def measure_masked(run: Run, waveforms: Tensor, masks: Tensor) -> tuple[float, float]:
    """Return the mean KL and the accuracy at masked frames of int16 audio (B, N), without dropout, in fp32."""
    model, targets = run.model, run.targets
    model.eval()
    sums = torch.zeros(len(SUMS), device=run.device)
    # Do not compile: this shape and precision occur once in hundreds of steps.
    with torch.autocast(run.device.type, enabled=False), torch.compiler.set_stance("force_eager"):
        for part, mask in zip(waveforms.split(CHUNK), masks.split(CHUNK), strict=True):
            clean, mask = to_float(part.to(run.device)), mask.to(run.device)
            q, _ = targets(targets.frame_features(clean, run.active_layer))
            logits = model.predict(model.encoder(clean, mask=mask).last, mask)
            sums += frame_sums(q, logits, mask)[2]
    model.train()
    found = dict(zip(SUMS, sums.tolist(), strict=True))
    frames = max(1.0, found["frames_masked"])
    return found["kl_masked"] / frames, found["correct_masked"] / frames
