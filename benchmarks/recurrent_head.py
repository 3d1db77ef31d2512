"""One training step of the recurrent head on a CPU: utterances packed, and as LSTMs in one direction each.

    python benchmarks/recurrent_head.py --out benchmarks/results/recurrent-head-cpu.json

A batch has 16 utterances of 5 to 10 s of random features. One thread; CPU time, so other load has little effect.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch
from output import to_markdown
from torch import Tensor, nn

from sjepa.evaluate.superb.heads import RecurrentHead, run_each_way, run_packed

BATCH, FRAMES, DIMENSION, SYMBOLS = 16, (250, 500), 768, 32
WIDTHS = {"lite": 256, "full": 1024}

Layer = Callable[[nn.LSTM, Tensor, Tensor], Tensor]


def measure_step(head: RecurrentHead, run: Layer, x: Tensor, frames: Tensor) -> float:
    """Return the CPU seconds of a forward and a backward pass."""
    start = time.process_time()
    y = head.projection(x)
    for layer in head.layers:
        y = head.dropout(run(cast(nn.LSTM, layer), y, frames))
    head.output(y).square().mean().backward()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    frames = torch.randint(*FRAMES, (BATCH,))
    x = torch.randn(BATCH, int(frames.max()), DIMENSION)
    seconds = {}
    for protocol, width in WIDTHS.items():
        head = RecurrentHead(DIMENSION, SYMBOLS, width)
        taken: dict[str, list[float]] = {"packed": [], "one direction each": []}
        for _ in range(options.rounds):
            for name, run in zip(taken, (run_packed, run_each_way), strict=True):
                taken[name].append(measure_step(head, run, x, frames))
        seconds[f"{protocol}, width {width}"] = {name: round(statistics.median(t), 2) for name, t in taken.items()}
    found = {"seconds of a step": seconds, "machine": platform.machine(), "torch": torch.__version__}
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    rows = [
        [head, *(f"{s:.1f}" for s in t.values()), f"{t['packed'] / t['one direction each']:.1f}"]
        for head, t in seconds.items()
    ]
    print(to_markdown(["head", "packed, s", "one direction each, s", "ratio"], rows))


if __name__ == "__main__":
    main()
