"""Compare the loss curve of a killed and resumed run with an uninterrupted one.

python benchmarks/resume.py --data AUDIO [--preset half-hour] [--steps 1000] [--out FILE]

One run trains both phases with `--steps` steps each. A copy resumes from the checkpoint in the middle of phase 1, is
killed in the middle of phase 2 (SIGKILL) and resumed. On a CPU, both are identical bit by bit. On a GPU, sums differ in
their order.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sjepa.files import write_whole
from sjepa.runs.events import select_events
from sjepa.runs.folder import RunFolder

NAMES = ("loss", "kl_masked", "accuracy_masked", "target_perplexity")


def train(out: Path, *options: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-m", "sjepa", "pretrain", "--out", str(out), *options])


def wait_for(run: "subprocess.Popen[bytes]") -> None:
    if run.wait():
        raise SystemExit(f"sjepa pretrain ended with {run.returncode}")


def read_curve(out: Path) -> list[dict[str, Any]]:
    return select_events(RunFolder(out).events(), "train")


def compare(data: str, preset: str, steps: int, folder: Path) -> dict[str, Any]:
    every, whole, broken = max(2, steps // 20), folder / "whole", folder / "broken"
    lengths = {"phase1.steps": steps, "phase2.steps": steps, "train.log-every": every}
    saving = {"train.checkpoint-every": steps // 2, "train.keep-checkpoints": 10}
    settings = [word for name, value in (lengths | saving).items() for word in (f"--{name}", str(value))]
    wait_for(train(whole, "--preset", preset, "--data", data, *settings))

    shutil.copytree(whole, broken)
    copy = RunFolder(broken)
    for step in copy.checkpoint_steps:
        if step > steps // 2:
            shutil.rmtree(copy.checkpoint(step))
    running, killed_at = train(broken), 0
    while killed_at <= steps * 3 // 2 or killed_at >= 2 * steps:  # until it starts, the copy still has its old log
        time.sleep(0.05)
        if running.poll() is not None:
            raise SystemExit("the copy ended before it was killed: increase --steps")
        lines = read_curve(broken)
        killed_at = lines[-1]["step"] if lines else 0
    running.send_signal(signal.SIGKILL)
    running.wait()
    wait_for(train(broken))

    first, again = (read_curve(out)[steps // 2 // every :] for out in (whole, broken))
    assert [line["step"] for line in first] == [line["step"] for line in again]
    apart = {
        name: max(abs(a[name] - b[name]) / max(abs(a[name]), 1e-9) for a, b in zip(first, again, strict=True))
        for name in NAMES
    }
    lines = [{"step": a["step"], "whole": a["loss"], "continued": b["loss"]} for a, b in zip(first, again, strict=True)]
    return {"killed_at": killed_at, "largest_relative_difference": apart, "loss": lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--preset", default="half-hour")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = compare(arguments.data, arguments.preset, arguments.steps, Path(folder))
    for name, value in found["largest_relative_difference"].items():
        print(f"{name:<20} differs by at most {value:.3%} after the checkpoint at step {arguments.steps // 2:,}")
    if arguments.out:
        facts = {"preset": arguments.preset, "steps of each phase": arguments.steps}
        write_whole(arguments.out, json.dumps(facts | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
