"""Kill commands at random moments (SIGKILL), run them again, and compare with uninterrupted ones.

    python benchmarks/kill.py --kills 100
    python benchmarks/kill.py --kills 100 --world-size 2 --jobs pretrain

A trial starts a command, kills all of its processes up to three times, lets it finish, and compares every file bit by
bit with those of an uninterrupted command. Timings are ignored. About half of the kills wait for a partially written
file. Results go to benchmarks/results/kill.json, or kill-2-ranks.json for two ranks.
"""

import argparse
import hashlib
import json
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402
import soundfile  # noqa: E402
import torch  # noqa: E402
from conftest import babble, micro_config  # noqa: E402
from processes import free_port  # noqa: E402

from sjepa import cli  # noqa: E402
from sjepa.files import LOCK, is_partial  # noqa: E402
from sjepa.runs.events import select_events  # noqa: E402
from sjepa.runs.folder import RunFolder  # noqa: E402
from sjepa.settings_file import to_toml  # noqa: E402

PATIENCE = 1800  # seconds to wait for a command, which is slow on a busy machine
# Fields with timings, and files that describe the machine.
TIMES = ("audio_seconds_per_second", "speed", "rank_speed", "log_bytes", "started", "seconds")
IGNORED = ("run.json", "tensorboard", "_embed.json")


@dataclass(frozen=True)
class Job:
    """A command to kill."""

    name: str
    arguments: Callable[[Path, bool], list[str]]
    """Maps the output folder, and whether this is a repeated attempt, to arguments."""


class Running:
    """A command in its own process group."""

    def __init__(self, arguments: list[str], world_size: int):
        self.code: int | None = None
        self.group = start(arguments, world_size)

    def poll(self) -> int | None:
        """Return the exit code, or None if the command is still running."""
        if self.code is None:
            done, status = os.waitpid(self.group, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if done else None
        return self.code

    def wait(self) -> int | None:
        deadline = time.monotonic() + PATIENCE
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        return self.code

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it has just ended
            os.killpg(self.group, number)


def start(arguments: list[str], world_size: int) -> int:
    """Start a command in a fork of this process, which has already loaded torch. Return its process group."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    if world_size == 1:
        call(arguments)
    shared = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for rank in range(world_size):
        if os.fork() == 0:
            os.environ |= shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            call(arguments)
    for _ in range(world_size):
        code = os.waitstatus_to_exitcode(os.wait()[1])
        if code:  # as under torchrun, the other ranks end with the one that failed
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.killpg(0, signal.SIGTERM)
            os._exit(code if code > 0 else 70)
    os._exit(0)


def call(arguments: list[str]) -> NoReturn:
    """Run a command in this process, and end it."""
    try:
        cli.main(arguments)
        os._exit(0)
    except SystemExit as ended:
        os._exit(ended.code if isinstance(ended.code, int) else 1)
    except BaseException:
        os._exit(70)


def is_writing(out: Path) -> bool:
    """Return whether a file in a folder or its parent is being written."""
    names = [name for _, folders, files in os.walk(out) for name in (*folders, *files)]
    names += os.listdir(out.parent) if out.parent.is_dir() else []
    return any(map(is_partial, names))


def find_stage(job: str, out: Path) -> str:
    """Return the stage of a command, according to its files."""
    if not out.is_dir():
        return f"{job}: start"
    if is_writing(out):
        return f"{job}: writing"
    if job != "pretrain":
        return f"{job}: work"
    run = RunFolder(out)
    if not run.exists:
        return f"{job}: start"
    try:
        events = run.events()
    except Exception:
        events = []
    begun, lines = select_events(events, "phase"), select_events(events, "train")
    if not begun:
        return f"{job}: sampling and EM"
    last = lines[-1]["step"] if lines else 0
    return f"{job}: boundary" if last == 12 and len(begun) == 1 else f"{job}: training, phase {len(begun)}"


def remove_times(value: Any) -> Any:
    """Remove timings from a JSON value."""
    if isinstance(value, dict):
        return {key: remove_times(inner) for key, inner in value.items() if key not in TIMES}
    return [remove_times(inner) for inner in value] if isinstance(value, list) else value


def hash_content(path: Path) -> str:
    """Return a hash of a file's contents without timings."""
    if path.suffix in (".json", ".jsonl"):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        data = json.dumps([remove_times(json.loads(line)) for line in lines]).encode()
    elif path.suffix == ".npz":
        with np.load(path) as arrays:
            data = b"".join(name.encode() + arrays[name].tobytes() for name in sorted(arrays))
    else:
        data = path.read_bytes()
    return hashlib.sha256(data).hexdigest()


def hash_files(out: Path) -> dict[str, str]:
    files = [path for path in sorted(out.rglob("*")) if path.is_file()]
    names = {path: path.relative_to(out).as_posix() for path in files}
    return {name: hash_content(path) for path, name in names.items() if not set(Path(name).parts) & set(IGNORED)}


def find_leftovers(out: Path) -> list[str]:
    """Return remaining locks and partially written files."""
    names = [name for _, folders, files in os.walk(out) for name in (*folders, *files)] + os.listdir(out.parent)
    return [name for name in names if is_partial(name) or name.endswith(LOCK)]


class Reference(NamedTuple):
    """The files of an uninterrupted command, and its duration."""

    files: dict[str, str]
    seconds: float


def run_trial(job: Job, reference: Reference, folder: Path, world_size: int, most: int) -> dict[str, Any]:
    """Kill a command up to `most` times, let it finish, and compare."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    out, stages = folder / "out", []
    for _ in range(random.randint(1, min(3, most))):
        running = Running(job.arguments(out, bool(stages)), world_size)
        began, delay = time.monotonic(), random.uniform(0, 1.05) * reference.seconds
        on_writing = random.random() < 0.5
        while running.poll() is None and time.monotonic() - began < delay:
            if on_writing and is_writing(out):
                time.sleep(random.uniform(0, 0.004))
                break
            time.sleep(0.001)
        if running.poll() is not None:
            break
        running.signal(signal.SIGSTOP)  # the stage must not change before the kill
        stage = find_stage(job.name, out)
        running.signal(signal.SIGKILL)
        if running.wait() == -signal.SIGKILL:
            stages.append(stage)
    code = Running(job.arguments(out, bool(stages)), world_size).wait()
    fault = "" if code == 0 else f"the command ended with {code}"
    if not fault:
        found, whole = hash_files(out), reference.files
        differing = sorted(name for name in whole.keys() | found.keys() if whole.get(name) != found.get(name))
        fault = f"differs: {', '.join(differing[:5])}" if differing else ""
        left = find_leftovers(out)
        fault = fault or (f"left behind: {', '.join(left)}" if left else "")
    return {"job": job.name, "kills": stages, "fault": fault}


def make_jobs(folder: Path, world_size: int) -> dict[str, Job]:
    corpus, preset, run, index = (folder / name for name in ("corpus", "micro.toml", "run", "index"))
    corpus.mkdir()
    for number in range(40):
        soundfile.write(corpus / f"{number:02d}.wav", babble(1.0 + 0.05 * (number % 8), number), 16_000)
    phase = {"steps": 12, "k": 8}
    preset.write_text(to_toml(micro_config(phase1=phase, phase2=phase)))
    data = ["--preset", str(preset), "--data", str(corpus)]
    found = {"pretrain": Job("pretrain", lambda out, _: ["pretrain", "--out", str(out), *data])}
    if world_size > 1:
        return found
    run_unbroken(["pretrain", "--out", str(run), *data])
    run_unbroken(["index", str(corpus), "--out", str(index)])
    found["index"] = Job("index", lambda out, _: ["index", str(corpus), "--out", str(out)])
    other = shutil.copytree(corpus, folder / "other")
    soundfile.write(other / "more.wav", babble(1.2, 99), 16_000)
    longer = ["--phase2.steps", "18", "--data", str(other), "--replace-data"]
    found["lengthen"] = Job("lengthen", lambda out, _: ["pretrain", "--out", str(copy_once(run, out)), *longer])
    small = ["--shard-hours", "0.002", "--workers", "2"]
    found["shard"] = Job("shard", lambda out, _: ["shard", str(index), "--out", str(out), *small])
    found["embed"] = Job("embed", lambda out, _: ["embed", str(corpus), "--encoder", str(run), "--out", str(out)])
    found["export"] = Job(
        "export", lambda out, again: ["export", str(run), str(out), "--to", "hf", *(["--force"] if again else [])]
    )
    try:
        import superb_corpora

        spoken = superb_corpora.voxceleb(folder / "voxceleb")
    except ImportError:
        return found
    task = ["superb", "sid", "--encoder", str(run), "--data", str(spoken), "--lite", "--steps", "40"]
    found["superb"] = Job("superb", lambda out, _: [*task, "--out", str(out)])
    return found


def copy_once(run: Path, out: Path) -> Path:
    """A run to change, copied where there is none yet."""
    if not out.exists():
        shutil.copytree(run, out)
    return out


def run_unbroken(arguments: list[str], world_size: int = 1) -> float:
    """Run a command without interruption. Return its duration."""
    began = time.monotonic()
    code = Running(arguments, world_size).wait()
    if code != 0:
        raise SystemExit(f"sjepa {' '.join(arguments)} ended with {code}")
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument(
        "--jobs", nargs="*", help="pretrain, lengthen, index, shard, embed, export, superb; all by default"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    name = "kill.json" if given.world_size == 1 else f"kill-{given.world_size}-ranks.json"
    out: Path = given.out or RESULTS / name
    random.seed(given.seed)
    torch.set_num_threads(1)
    trials: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        jobs = make_jobs(folder, given.world_size)
        jobs = {name: job for name, job in jobs.items() if not given.jobs or name in given.jobs}
        references = {}
        for name, job in jobs.items():
            twice = []
            for number in (1, 2):
                whole = folder / f"{name}-{number}" / "out"
                whole.parent.mkdir()
                duration = run_unbroken(job.arguments(whole, False), given.world_size)
                twice.append(hash_files(whole))
            if twice[0] != twice[1]:
                differing = [file for file in twice[0] if twice[0][file] != twice[1].get(file)]
                raise SystemExit(f"two uninterrupted runs of {name} differ: {', '.join(differing)}")
            references[name] = Reference(twice[0], duration)
        while (done := sum(len(each["kills"]) for each in trials)) < given.kills:
            # Half of the trials are training, which has the most state to lose.
            chosen = "pretrain" if "pretrain" in jobs and random.random() < 0.5 else random.choice(list(jobs))
            left = given.kills - done
            trials.append(run_trial(jobs[chosen], references[chosen], folder / "trial", given.world_size, left))
            write(out, trials, given.world_size)
            print(f"{done + len(trials[-1]['kills'])} kills: {trials[-1]}", flush=True)


def write(out: Path, trials: list[dict[str, Any]], world_size: int) -> None:
    stages = Counter(stage for each in trials for stage in each["kills"])
    results = {
        "kills": sum(stages.values()),
        "trials": len(trials),
        "world_size": world_size,
        "faults": sum(bool(each["fault"]) for each in trials),
        "stages": dict(sorted(stages.items())),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "found": [each for each in trials if each["fault"]],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
