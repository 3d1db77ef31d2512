"""Start commands in separate processes that tests can kill, without the seconds that importing torch takes.

A server process imports the package once and forks for each command.
"""

import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import sjepa

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    ["sjepa.commands.pretrain", "sjepa.train.loop", "torch._dynamo", "torch.utils.tensorboard", "torch.distributed.run"]
)


def run_sjepa(arguments: list[str]) -> None:
    from sjepa import cli

    cli.main(arguments)


def run_python(arguments: list[str]) -> None:
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


def run_shell(arguments: list[str]) -> None:
    os.execvp("sh", ["sh", *arguments])


def run_torchrun(arguments: list[str]) -> None:
    from torch.distributed import run

    run.main(arguments)


class Command:
    """A command that runs, with its output in a file.

    The process calls `before` first, which must be a function of a module, or a partial of one. So must `main` be.
    """

    def __init__(
        self,
        arguments: list[str],
        output: Path,
        environment: dict[str, str] | None = None,
        before: Callable[[], None] | None = None,
        main: Callable[[list[str]], None] = run_sjepa,
    ):
        self.output = output
        self.process = context.Process(target=call, args=(main, arguments, str(output), environment or {}, before))
        self.process.start()

    @property
    def pid(self) -> int:
        return self.process.pid or 0

    @property
    def is_running(self) -> bool:
        return self.process.is_alive()

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL to the process and to those that it started."""
        if self.is_running:
            os.killpg(self.pid, signal.SIGKILL)
        self.process.join()

    def wait(self, seconds: float = 120) -> int:
        """The exit code."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.kill()
            raise TimeoutError(f"still running after {seconds} s: {self.text}")
        return self.process.exitcode

    @property
    def text(self) -> str:
        """What it printed, errors too."""
        return self.output.read_text() if self.output.exists() else ""


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def start_ranks(
    arguments: list[str],
    output: Path,
    world_size: int,
    before: Callable[[], None] | None = None,
    launcher: Literal["torchrun", "srun"] = "torchrun",
    main: Callable[[list[str]], None] = run_sjepa,
) -> list[Command]:
    """The same command on several ranks, as a launcher would start them; on one, a plain process."""
    if world_size == 1:
        return [Command(arguments, output, before=before, main=main)]
    shared = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)]
    if launcher == "srun":
        step = {"SLURM_STEP_NUM_TASKS": str(world_size), "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": "1"}
        step["MASTER_PORT"] = shared["MASTER_PORT"]
        ranks = [step | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(world_size)]
    return [Command(arguments, output.with_suffix(f".{rank}"), each, before, main) for rank, each in enumerate(ranks)]


def start_torchrun(options: list[str], arguments: list[str], output: Path) -> Command:
    """torchrun with these options, which forks its ranks where it would otherwise start interpreters."""
    script = Path(sjepa.__file__).with_name("__main__.py")
    fork = ["--run-path", "--start-method", "fork"]
    return Command([*options, *fork, str(script), *arguments], output, main=run_torchrun)


def call(
    main: Callable[[list[str]], None],
    arguments: list[str],
    output: str,
    environment: dict[str, str],
    before: Callable[[], None] | None,
) -> None:
    """In the new process: its own session, its output in a file, then the command."""
    os.setsid()
    multiprocessing.set_start_method(None, force=True)  # workers start as in a user's process, not by another server
    os.environ.update(environment)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import torch

    torch.set_num_threads(1)
    if before is not None:
        before()
    try:
        main(arguments)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def orphan(folder: Path, setup: str = "pass", work: str = "pass", held: str = "contextlib.nullcontext()") -> int:
    """Fork a worker process in a program, kill the program, and return the process id of the worker.

    The program runs `setup`, and forks within the context `held`; the worker runs `work`, and then sleeps.
    """
    program = f"""
import contextlib, os, signal, time
{setup}
with {held}:
    reading, writing = os.pipe()
    worker = os.fork()
    if not worker:
        {work}
        os.write(writing, b"started")
        time.sleep(60)
        os._exit(0)
    os.read(reading, 7)
    print(worker, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    written = folder / "worker"
    with written.open("w") as output:  # not a pipe, whose end the worker would hold too
        subprocess.run([sys.executable, "-c", program], check=False, stdout=output)
    return int(written.read_text())
