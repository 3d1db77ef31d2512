"""Run the program on random hostile input thousands of times and count failures.

    python benchmarks/fuzz.py --attempts 10000
    python benchmarks/fuzz.py --attempts 10000 --workers 2 --journals /tmp/fuzz

The attacks are those of tests/test_fuzz.py. Each must end with exit code 0, 1 or 2 and a line with the reason, without
a traceback, and without changes outside of `--out`. Each must end within two minutes of CPU time, so the verdict does
not depend on how busy the machine is. Half an hour almost without CPU time counts as a hang. Workers are processes, to
record crashes of libraries too. The counts go to benchmarks/results/fuzz.json. With --journals, an interrupted run
continues: finished blocks of attempts are read from that folder.
"""

import argparse
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "fuzz.json"
SHARES = {"audio": 0.2, "lists": 0.25, "files": 0.3, "weights": 0.1, "commands": 0.15}
CHUNK = 250  # attempts per worker
# Limits for a library that loops or waits in C, where Python sees no signal: seconds of CPU time per attempt, and
# seconds without progress and CPU time. Both are larger than the limits of an attempt in tests/hostile.py.
C_CPU_SECONDS = 300
C_WALL_SECONDS = 3600
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
NAMED = 50  # findings written in full
HANGS = ("took more than", "waited for more than", "hangs")


@contextmanager
def limit_cpu(seconds: int) -> Iterator[None]:
    """Let the system end this process (SIGXCPU) if the block uses more CPU time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + seconds, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def work(kind: str, seed: int, attempts: int, source: Path, journal: Path) -> None:
    """Make attempts of one kind. Each writes a line to the journal when it starts and when it ends."""
    sys.path.insert(0, str(ROOT / "tests"))
    import hypothesis
    import torch
    from hostile import ATTACKS, Workspace, attempt
    from hypothesis import strategies as st

    from sjepa.data import waiting

    torch.set_num_threads(1)
    waiting.FIRST_WAIT = 0.0
    with tempfile.TemporaryDirectory() as folder, journal.open("a") as file:
        workspace = Workspace(Path(folder) / "work", source)

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
            log(file, began=repr(chosen))
            with limit_cpu(C_CPU_SECONDS):
                log(file, ended=attempt(chosen, workspace))

        attack()


def log(file: IO[str], **values: str) -> None:
    """Write a line to a journal."""
    file.write(json.dumps(values) + "\n")
    file.flush()


def make_workspace(folder: Path) -> Path:
    """Make the inputs that workers copy."""
    program = "import sys; from pathlib import Path; from hostile import make_source; make_source(Path(sys.argv[1]))"
    environment = ENVIRONMENT | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}"}
    subprocess.run([sys.executable, "-c", program, folder], env=environment, check=True, stdout=subprocess.DEVNULL)
    return folder


@dataclass
class Block:
    """Attempts of one kind that one worker makes."""

    kind: str
    seed: int
    attempts: int
    """How many to make; when it has ended, how many were made."""
    findings: list[dict[str, str]] = field(default_factory=list)


def run_block(block: Block, source: Path, journals: Path) -> Block:
    """Run a worker, and close its journal with how the worker failed, or an empty string."""
    journal = journals / f"{block.seed}-{block.kind}.jsonl"
    journal.unlink(missing_ok=True)
    journal.touch()
    failure = run_worker([block.kind, str(block.seed), str(block.attempts), str(source), str(journal)], journal)
    with journal.open("a") as file:
        log(file, closed=failure)
    return next(read_blocks(journals, block.seed))


def run_worker(arguments: list[str], journal: Path) -> str:
    """Run a worker. Return how it failed, or an empty string."""
    environment = ENVIRONMENT | {"PYTHONPATH": str(ROOT / "src")}
    with tempfile.TemporaryFile() as errors:
        # Decoders write to stderr too, so it matters only if the worker itself fails.
        call = [sys.executable, __file__, "--worker", *arguments]
        process = subprocess.Popen(call, env=environment, stdout=subprocess.DEVNULL, stderr=errors)
        seen, used = time.time(), ""
        while process.poll() is None:
            time.sleep(0.5)
            if time.time() - max(seen, journal.stat().st_mtime) > C_WALL_SECONDS:
                seen, before, used = time.time(), used, read_cpu_time(process.pid)
                if used != before:
                    continue
                process.kill()
                process.wait()
                return f"it hangs: nothing for {C_WALL_SECONDS} s"
        errors.seek(0)
        tail = errors.read()[-1000:].decode(errors="replace")
    if process.returncode == -signal.SIGXCPU:
        return f"it hangs: more than {C_CPU_SECONDS} s of CPU time in a library"
    return "" if process.returncode == 0 else f"the process died with {process.returncode}: {tail}"


def read_cpu_time(pid: int) -> str:
    """The CPU time of a process as the system shows it, to the second."""
    return subprocess.run(["ps", "-o", "time=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()


def read_blocks(journals: Path, seed: int | str = "*") -> Iterator[Block]:
    """Read the blocks whose journals are closed."""
    for journal in sorted(journals.glob(f"{seed}-*.jsonl")):
        number, _, kind = journal.stem.partition("-")
        block, began, closed = Block(kind, int(number), 0), "", False
        for line in journal.read_text().splitlines():
            entry = json.loads(line)
            began, closed = entry.get("began", began), "closed" in entry
            fault = entry.get("ended") or entry.get("closed")
            if fault:
                block.findings.append({"kind": kind, "seed": number, "attack": began or "none", "fault": fault})
            if "ended" in entry or (closed and fault):
                block.attempts += 1
                began = ""
        if closed:
            yield block


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes at the same time")
    parser.add_argument("--journals", type=Path, help="folder for the log of each attempt, to continue from")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        kind, seed, attempts, source, journal = given.worker
        work(kind, int(seed), int(attempts), Path(source), Path(journal))
        return
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.workers) as pool:
        journals = given.journals or Path(folder) / "journals"
        journals.mkdir(parents=True, exist_ok=True)
        source = make_workspace(Path(folder) / "source")
        done, pending, seed = list(read_blocks(journals)), dict[Future[Block], Block](), given.seed
        while True:
            planned = Counter[str]()
            for block in (*done, *pending.values()):
                planned[block.kind] += block.attempts
            left = given.attempts - planned.total()
            if left > 0 and len(pending) < given.workers:
                seed = next(number for number in count(seed + 1) if all(block.seed != number for block in done))
                kind = min(SHARES, key=lambda name: (planned[name] + 1) / SHARES[name])
                block = Block(kind, seed, min(CHUNK, left))
                pending[pool.submit(run_block, block, source, journals)] = block
            elif pending:
                for ended in wait(pending, return_when=FIRST_COMPLETED).done:
                    pending.pop(ended)
                    done.append(ended.result())
                write(given.out, done)
            else:
                break


def write(out: Path, blocks: list[Block]) -> None:
    """Write the counts so far."""
    counts = Counter[str]()
    for block in blocks:
        counts[block.kind] += block.attempts
    findings = [each for block in blocks for each in block.findings]
    results = {
        "attempts": counts.total(),
        "by_kind": dict(counts),
        "findings": len(findings),
        "tracebacks": sum("Traceback" in each["fault"] or "died" in each["fault"] for each in findings),
        "hangs": sum(any(word in each["fault"] for word in HANGS) for each in findings),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "found": findings[:NAMED],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"{counts.total():,} attempts, {len(findings)} findings", flush=True)


if __name__ == "__main__":
    main()
