"""Compare the loss curve of the optimised training step with a plain implementation.

python benchmarks/convergence.py --data AUDIO [--preset half-hour] [--steps 300] [--out FILE]

Both train the first phase from the same weights, on the same batches and masks, without dropout. One is the normal
training (compiled, with CUDA graphs on a GPU), the other uses Hugging Face's HubertModel without compilation. Both run
in fp32 and, on a GPU, in bf16. fp32 shows whether the method is the same, bf16 the effect of rounding.
"""

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import HubertConfig, HubertModel

from sjepa.config import Config
from sjepa.data.loader import BatchReader, load, plan_batches
from sjepa.data.opening import open_corpus
from sjepa.model.encoder import EncoderNetwork, EncoderOutput, ScaleGradient
from sjepa.model.formats import to_hugging_face
from sjepa.runs.folder import RunFolder
from sjepa.settings_file import load_preset
from sjepa.train.boundary import begin_phase
from sjepa.train.metrics import Log
from sjepa.train.optimizer import make_optimizers
from sjepa.train.run import Run
from sjepa.train.step import train_step


class PlainEncoder(nn.Module):
    """Hugging Face's HubertModel with the interface of our encoder."""

    def __init__(self, encoder: EncoderNetwork):
        super().__init__()
        self.config = encoder.config
        self.model = HubertModel(HubertConfig(**to_hugging_face(encoder.config)))
        missing, unknown = self.model.load_state_dict(encoder.state_dict(), strict=False)
        assert not unknown, unknown
        assert set(missing) <= {"masked_spec_embed"}, missing

    def forward(self, waveforms: Tensor, mask: Tensor, keep: Sequence[bool]) -> EncoderOutput:
        features = self.model.feature_extractor(waveforms).transpose(1, 2)
        features = ScaleGradient.apply(features, self.config.feature_gradient_scale)
        hidden = self.model.feature_projection(features).masked_fill(mask.unsqueeze(2), 0.0)
        return EncoderOutput([self.model.encoder(hidden).last_hidden_state], None)


def train_curve(
    config: Config, data: str, plain: bool, precision: str, every: int, codebook: dict[str, Tensor]
) -> list[float]:
    """Train and return mean losses over `every` steps. The first call fits the mixture, which later calls reuse."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train: dict[str, Any] = {"precision": precision, "compile": not plain}
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, **train))
    run = Run.start(config, device)
    if plain:
        run.model.encoder = PlainEncoder(run.model.encoder).to(device)  # type: ignore[assignment]
        run.optimizers = make_optimizers(config, run.model, device)
    corpus = open_corpus(data, config.batches.max_seconds, "memory", 0.0)
    plan = plan_batches(corpus, config.batches, config.seed, 1)
    reader = BatchReader(corpus, config.mask, config.augment, seed=config.seed, rank=0, world_size=1)
    phase, losses = config.schedule()[0], []
    with tempfile.TemporaryDirectory() as folder, closing(Log(RunFolder(folder), 0, 0)) as log:
        begin_phase(run, phase, reader, plan, log)
    if not codebook:
        codebook |= {name: tensor.clone() for name, tensor in run.targets.codebook.state_dict().items()}
    run.targets.codebook.load_state_dict(codebook)
    batches = load(reader, plan, (0, 0), 0, device)
    for step in range(phase.end):
        run.step = step
        train_step(run, phase, next(batches), None)
        if (step + 1) % every == 0:
            losses.append(run.meter.read()["loss"])
    batches.close()
    return losses


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--preset", default="half-hour")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    config = load_preset(arguments.preset)
    middle = config.batches.buckets[len(config.batches.buckets) // 2]  # one length, to compile less
    none: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "layerdrop": 0.0}
    config = dataclasses.replace(
        config,
        encoder=dataclasses.replace(config.encoder, **none),
        predictor=dataclasses.replace(config.predictor, dropout=0.0),
        phase1=dataclasses.replace(config.phase1, steps=arguments.steps),
        batches=dataclasses.replace(config.batches, buckets=(middle,), seconds=min(60.0, config.batches.seconds)),
    )
    every = max(1, arguments.steps // 20)
    curves: dict[str, list[float]] = {}
    away: dict[str, float] = {}
    codebook: dict[str, Tensor] = {}
    for precision in ("fp32", "bf16") if torch.cuda.is_available() else ("fp32",):
        for way in ("plain", "as it trains"):
            name = f"{way}, {precision}"
            losses = curves[name] = train_curve(config, arguments.data, way == "plain", precision, every, codebook)
            reference = torch.tensor(curves["plain, fp32"])
            away[name] = float(((torch.tensor(losses) - reference).abs() / reference).max())
            print(
                f"{name:<18}", " ".join(f"{loss:.4f}" for loss in losses), f"  at most {away[name]:.2%} from plain fp32"
            )
    if arguments.out:
        facts = {"preset": arguments.preset, "steps_each": every, "torch": torch.__version__}
        arguments.out.write_text(json.dumps(facts | {"curves": curves, "largest_difference": away}, indent=1) + "\n")


if __name__ == "__main__":
    main()
