"""Run the program on random hostile input thousands of times and count failures.

    python benchmarks/fuzz.py --attempts 10000

The attacks are those of tests/test_fuzz.py. Each must end within two minutes with exit code 0, 1 or 2 and a line with
the reason, without a traceback, and without changes outside of `--out`. Workers are processes, to record crashes of
libraries too. The counts go to benchmarks/results/fuzz.json.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "fuzz.json"
SHARES = {"audio": 0.2, "lists": 0.25, "files": 0.3, "weights": 0.1, "commands": 0.15}
CHUNK = 250  # attempts per worker
PATIENCE = 600  # seconds without progress after which a worker counts as hanging
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
NAMED = 50  # findings written in full


def work(kind: str, seed: int, attempts: int, source: Path, journal: Path) -> None:
    """Make attempts of one kind. Each writes a line to the journal when it starts and when it ends."""
    sys.path.insert(0, str(ROOT / "tests"))
    import hypothesis
    import torch
    from hostile import ATTACKS, Workspace, attempt
    from hypothesis import strategies as st

    from sjepa.data import storage

    torch.set_num_threads(1)
    storage.FIRST_WAIT = 0.0
    with tempfile.TemporaryDirectory() as folder, journal.open("a") as file:
        workspace = Workspace(Path(folder) / "work", source)

        def say(**values: str) -> None:
            file.write(json.dumps(values) + "\n")
            file.flush()

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=attempts,
            deadline=None,
            database=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(st.data())
        def attack(data: Any) -> None:
            chosen = data.draw(ATTACKS[kind])
            say(began=repr(chosen))
            say(ended=attempt(chosen, workspace))

        attack()


def make_workspace(folder: Path) -> Path:
    """Make the inputs that workers copy."""
    program = "import sys; from pathlib import Path; from hostile import Workspace; Workspace(Path(sys.argv[1]))"
    environment = ENVIRONMENT | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}"}
    subprocess.run([sys.executable, "-c", program, folder], env=environment, check=True, stdout=subprocess.DEVNULL)
    return folder


def run_worker(kind: str, seed: int, attempts: int, source: Path, journal: Path) -> str:
    """Run a worker. Return how it failed, or an empty string."""
    call = [sys.executable, __file__, "--worker", kind, str(seed), str(attempts), str(source), str(journal)]
    environment = ENVIRONMENT | {"PYTHONPATH": str(ROOT / "src")}
    journal.touch()
    with tempfile.TemporaryFile() as errors:
        # Decoders write to stderr too, so it matters only if the worker itself fails.
        process = subprocess.Popen(call, env=environment, stdout=subprocess.DEVNULL, stderr=errors)
        while process.poll() is None:
            time.sleep(0.5)
            if time.time() - journal.stat().st_mtime > PATIENCE:
                process.kill()
                process.wait()
                return f"hangs: nothing for {PATIENCE} s"
        errors.seek(0)
        tail = errors.read()[-1000:].decode(errors="replace")
    return "" if process.returncode == 0 else f"the process died with {process.returncode}: {tail}"


def read_journal(journal: Path) -> tuple[int, list[dict[str, str]], str]:
    """Return the number of finished attempts, their findings, and the unfinished attempt."""
    count, findings, began = 0, [], ""
    for line in journal.read_text().splitlines():
        entry = json.loads(line)
        began = entry.get("began", began)
        if "ended" in entry:
            count += 1
            if entry["ended"]:
                findings.append({"attack": began, "fault": entry["ended"]})
            began = ""
    return count, findings, began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        kind, seed, attempts, source, journal = given.worker
        work(kind, int(seed), int(attempts), Path(source), Path(journal))
        return
    started, counts, findings, seed = time.monotonic(), Counter[str](), [], given.seed
    with tempfile.TemporaryDirectory() as folder:
        source = make_workspace(Path(folder) / "source")
        while sum(counts.values()) < given.attempts:
            kind = min(SHARES, key=lambda name: (counts[name] + 1) / SHARES[name])
            seed += 1
            journal = Path(folder) / f"{seed}.jsonl"
            left = given.attempts - sum(counts.values())
            failure = run_worker(kind, seed, min(CHUNK, left), source, journal)
            count, found, began = read_journal(journal)
            if failure:
                found.append({"attack": began or f"seed {seed}", "fault": failure})
            counts[kind] += max(count, 1)
            findings += [{"kind": kind, "seed": str(seed), **each} for each in found]
            write(given.out, counts, findings, time.monotonic() - started)
            print(f"{sum(counts.values()):,} attempts, {len(findings)} findings", flush=True)


def write(out: Path, counts: Counter[str], findings: list[dict[str, str]], seconds: float) -> None:
    """Write the counts so far."""
    tracebacks = sum("Traceback" in each["fault"] or "died" in each["fault"] for each in findings)
    hangs = sum("took more than" in each["fault"] or "hangs" in each["fault"] for each in findings)
    results = {
        "attempts": sum(counts.values()),
        "by_kind": dict(counts),
        "findings": len(findings),
        "tracebacks": tracebacks,
        "hangs": hangs,
        "minutes": round(seconds / 60, 1),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "found": findings[:NAMED],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
