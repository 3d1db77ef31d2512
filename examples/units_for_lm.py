"""Discrete units for a speech language model: one line of tokens per recording, and a small model of them.

    sjepa embed CORPUS --encoder RUN --what units --deduplicate --out UNITS
    python examples/units_for_lm.py UNITS units.txt [STEPS]

`units.txt` is what text tools expect: one recording per line, units as words (u17 u3 ...). Any trainer of language
models can go on from there; the recurrent model here shows that there is something to learn.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn

from sjepa.counts import format_count
from sjepa.progress import bar, track

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("units", type=Path)
parser.add_argument("out", type=Path)
parser.add_argument("steps", type=int, nargs="?", default=300)
given = parser.parse_args()
out, steps = given.out, given.steps

files = sorted(given.units.rglob("*.npz"))
if not files or "units" not in np.load(files[0]):
    parser.error(f"{given.units} holds no units: make them with sjepa embed --what units")
if len(files) < 5:
    parser.error(
        f"{given.units} has {format_count(len(files), 'recording')}: at least 5 are needed, one of them held out"
    )
if out.is_dir() or not out.absolute().parent.is_dir():
    parser.error(f"{out} cannot be written: it is a folder, or its folder does not exist")
recordings = [torch.from_numpy(np.load(file)["units"]).long() for file in track(files, "Reading units")]
out.write_text("".join(" ".join(f"u{unit}" for unit in units.tolist()) + "\n" for units in recordings))

size = int(max(units.max() for units in recordings)) + 2
end = size - 1  # begins and ends a recording
sequences = [torch.cat([torch.tensor([end]), units, torch.tensor([end])]) for units in recordings]
held_out, training = sequences[::5], [s for i, s in enumerate(sequences) if i % 5]


class Model(nn.Module):
    def __init__(self, width: int = 128):
        super().__init__()
        self.embedding, self.output = nn.Embedding(size, width), nn.Linear(width, size)
        self.recurrent = nn.GRU(width, width, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:  # (B, T) -> (B, T, units)
        return self.output(self.recurrent(self.embedding(tokens))[0])


def loss(model: Model, batch: list[torch.Tensor]) -> torch.Tensor:
    tokens = nn.utils.rnn.pad_sequence(batch, batch_first=True, padding_value=-100)
    given, next_ones = tokens[:, :-1].clamp(min=0), tokens[:, 1:]
    return nn.functional.cross_entropy(model(given).transpose(1, 2), next_ones, ignore_index=-100)


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
with bar("Training", steps) as progress:
    for _ in range(steps):
        chosen = torch.randint(len(training), (8,)).tolist()
        optimizer.zero_grad()
        value = loss(model, [training[i] for i in chosen])
        value.backward()
        optimizer.step()
        progress.advance(note=f"loss {value.item():.3f}")

# What a model that knows only how frequent units are would reach.
counts = torch.bincount(torch.cat([s[1:] for s in training]), minlength=size) + 1.0
alone = -torch.cat([(counts / counts.sum()).log()[s[1:]] for s in held_out]).mean()
with torch.no_grad():
    learned = loss(model, held_out)
tokens = sum(map(len, recordings))
print(f"{format_count(len(recordings), 'recording')}, {tokens} tokens of {size - 1} units in {out}")
print(f"perplexity on held-out recordings: {learned.exp():.1f}, by frequency alone: {alone.exp():.1f}")
