"""The share of training time that checkpoints cost, from the log of a run.

python benchmarks/checkpoint_cost.py RUN [--out FILE]

Compares the time of log lines that follow a checkpoint with that of the other lines, in the last phase. Lines are
grouped by their place within 1,000 steps, because other work (checks of layers, counts of clusters) also happens at
fixed places.
"""

import argparse
import json
import statistics
from pathlib import Path

from sjepa.runs.events import select_events
from sjepa.runs.folder import RunFolder

PERIOD = 1000
FOLLOWING = 3  # lines from the one that ends with the checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    run = RunFolder(arguments.run)
    train = run.config().train
    every, log = train.checkpoint_every, train.log_every
    lines = select_events(run.events(), "train")
    # The first lines of a phase compile.
    lines = [line for line in lines if line["phase"] == lines[-1]["phase"]][2 * every // log :]
    excess = 0.0
    for place in range(0, FOLLOWING * log, log):
        after, others = [], []
        for line in lines:
            if line["step"] % PERIOD == place % PERIOD:
                (after if line["step"] % every == place else others).append(line["speed"]["seconds"])
        excess += statistics.mean(after) - statistics.mean(others)
    interval = statistics.mean(line["speed"]["seconds"] for line in lines) * every / log
    found = {
        "checkpoint_every": every,
        "checkpoints": sum(line["step"] % every == 0 for line in lines),
        "seconds_between": round(interval, 2),
        "seconds_each": round(excess, 4),
        "share": round(excess / interval, 6),
    }
    print(json.dumps(found))
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
