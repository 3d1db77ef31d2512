"""How much context an encoder's features contain, and how the encoder behaves on speech without masks.

python benchmarks/context.py CORPORA ENCODER...   # dev-clean and its phones -> benchmarks/results/context.json
python benchmarks/context.py                      # print the table of docs/study-trials.md from the JSON

Linear discriminant analysis predicts phones from single frames of a part of dev-clean, with a fifth of the speakers
held out (three splits). It is less accurate than the logistic probe but takes seconds. Each layer is tested on speech
as it is, with half as many masked frames appended, and with the frames 3 before and 3 after concatenated. Attention is
measured without masks: its entropy relative to a uniform one, and its weight on the frame itself and on frames at most
5 away.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from output import to_markdown
from torch import Tensor

from sjepa import Encoder
from sjepa.audio.io import read_audio
from sjepa.evaluate.labelled import read_labelled
from sjepa.evaluate.probes import split_off_fifth, standardize
from sjepa.model.frontend import frame_counts
from sjepa.progress import track

RESULTS = Path(__file__).parent / "results" / "context.json"
EVERY = 34  # use every 34th utterance
SPLITS, NEIGHBOUR, NEAR = 3, 3, 5


@torch.inference_mode()
def extract_states(encoder: Encoder, samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return states of the speech as it is and with masked frames appended, (states, T, D) each, and attention."""
    whole = encoder(samples[None]).hidden_states
    frames = whole[0].shape[1]
    longer = torch.cat(
        [samples, samples[: len(samples) // 2]]
    )  # of the same level, because the first norm covers all samples
    mask = torch.arange(int(frame_counts(torch.tensor(len(longer))))) >= frames
    behind = encoder(longer[None], mask=mask[None]).hidden_states
    attention = torch.stack(
        [summarize_attention(layer.attention, x[0]) for layer, x in zip(encoder.encoder.layers, whole, strict=False)]
    )
    return torch.cat(whole), torch.cat(behind)[:, :frames], attention


def summarize_attention(attention: Any, x: Tensor) -> Tensor:
    """Return entropy, weight on the frame itself and on near frames, averaged over heads and frames of (T, D)."""
    frames = len(x)
    q, k = (p(x).view(frames, attention.heads, -1).transpose(0, 1) for p in (attention.q_proj, attention.k_proj))
    a = (q @ k.transpose(1, 2) / math.sqrt(q.shape[2])).softmax(-1)
    away = (torch.arange(frames)[:, None] - torch.arange(frames)).abs()
    entropy = -torch.xlogy(a, a).sum(-1).mean() / math.log(frames)
    near = (away > 0) & (away <= NEAR)
    return torch.stack([entropy, (a * (away == 0)).sum(-1).mean(), (a * near).sum(-1).mean()])


def discriminant_accuracy(x: Tensor, phones: Tensor, speakers: np.ndarray) -> float:
    """Return the accuracy on held-out speakers of linear discriminant analysis in closed form."""
    names, scores = np.unique(speakers), []
    for split in range(SPLITS):
        held, _ = split_off_fifth(np.random.default_rng((0, split)).permutation(names))
        test = torch.from_numpy(np.isin(speakers, held))
        train, tested = standardize(x[~test].double(), x[test].double())
        y = phones[~test]
        count = torch.bincount(y, minlength=int(phones.max()) + 1).double()
        means = torch.zeros(len(count), x.shape[1], dtype=torch.float64).index_add_(0, y, train)
        means /= count.clamp(min=1)[:, None]
        within = train - means[y]
        covariance = within.T @ within / len(y) + 1e-2 * torch.eye(x.shape[1], dtype=torch.float64)
        directions = torch.linalg.solve(covariance, means.T)
        bias = torch.log(count / count.sum() + 1e-9) - 0.5 * (means * directions.T).sum(1)
        predicted = (tested @ directions + bias).argmax(1)
        scores.append(float((predicted == phones[test]).double().mean()))
    return round(100 * float(np.mean(scores)), 1)


def examine(path: Path, corpora: Path) -> dict[str, Any]:
    encoder, corpus = Encoder.from_pretrained(path), read_labelled(corpora)[::EVERY]
    found, labels, speakers = [], [], []
    for item in track(corpus, f"Features of {path.name}", len(corpus)):
        found.append(extract_states(encoder, torch.from_numpy(read_audio(item.utterance.path))))
        frames = found[-1][0].shape[1]
        labels.append(item.frame_phones(frames))
        speakers += [item.speaker] * frames
    phones = torch.from_numpy(np.unique(np.concatenate(labels), return_inverse=True)[1])
    whole, behind = (torch.cat([f[i] for f in found], 1) for i in (0, 1))
    attention = torch.stack([f[2] for f in found]).mean(0)
    owners, layers = np.array(speakers), []
    for state, (a, b) in enumerate(zip(whole, behind, strict=True)):
        stacked = torch.cat(
            [a.roll(NEIGHBOUR, 0), a, a.roll(-NEIGHBOUR, 0)], 1
        )  # the ends of an utterance include frames of another
        layers.append({"state": state, "whole": discriminant_accuracy(a, phones, owners)})
        layers[-1] |= {"masked frames behind": discriminant_accuracy(b, phones, owners)}
        layers[-1] |= {"frames beside": discriminant_accuracy(stacked, phones, owners)}
        if state:
            names = ("attention entropy", "on itself", "near")
            layers[-1] |= {
                name: round(value, 3) for name, value in zip(names, attention[state - 1].tolist(), strict=True)
            }
        print(layers[-1])
    moved = float((whole[-1] - behind[-1]).norm() / (whole[-1] - whole[-1].mean(0)).norm())
    return {"frames": len(phones), "layers": layers, "last layer moved by masked frames behind": round(moved, 2)}


def print_table() -> None:
    """Print the results as Markdown."""
    columns = {  # key in the JSON, title in the table
        "whole": "speech alone",
        "masked frames behind": "with masked frames",
        "frames beside": "with neighbours",
        "attention entropy": "attention entropy",
        "on itself": "on itself",
        "near": "near",
    }
    rows = [
        (name, str(layer["state"] - 1), *(str(layer[column]) for column in columns))
        for name, found in json.loads(RESULTS.read_text()).items()
        for layer in found["layers"][1:]
    ]
    print(to_markdown(("encoder", "layer", *columns.values()), rows))


def main() -> None:
    if len(sys.argv) > 1:
        corpora, encoders = Path(sys.argv[1]), [Path(path) for path in sys.argv[2:]]
        found = json.loads(RESULTS.read_text()) | {path.name: examine(path, corpora) for path in encoders}
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print_table()


if __name__ == "__main__":
    main()
