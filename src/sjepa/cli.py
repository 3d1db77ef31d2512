"""The command line: `sjepa COMMAND ...`."""

import io
import os
import sys
import traceback
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from sjepa.commands import COMMANDS
from sjepa.cpu_load import start_measuring
from sjepa.errors import OutageError, ReportedError, UserError, describe_file_error
from sjepa.files import refuse_below_file, refuse_folder
from sjepa.memory import keep_freed_memory
from sjepa.stopping import INTERRUPTED, StoppedError, interrupt_on_signals, is_alone, stop_requests
from sjepa.subcommands import call, option

# Commands that save their progress when they are interrupted. The same call continues.
CONTINUED = ("demo", "pretrain", "sweep", "index", "shard", "superb", "embed")
PROTOCOLS_FLAG = "--allow-protocols"
ONE_FILE = ("bench", "report", "table")  # commands whose --out is a file

# What to change if a command runs out of memory.
LESS_MEMORY = {
    "pretrain": "try --train.accumulate 4 or --train.recompute (GPU), or a lower --batches.memory-gb (host)",
    "embed": "lower --batch-seconds or --window.seconds",
    "superb": "lower --cache-gb",
}

TEMPORARY = 75  # exit code for a failure that may pass, as in sysexits.h


def dispatch(arguments: list[str]) -> None:
    """Run the command that the first argument names."""
    if arguments[:1] == ["--version"]:
        from sjepa.version import __version__

        print(__version__)
    else:
        check(arguments)
        note = f"With `{PROTOCOLS_FLAG} gs,az`, any command reads further fsspec protocols."
        call("sjepa", "command", COMMANDS, "sjepa.commands", arguments, note)


def allow_protocols(arguments: list[str]) -> list[str]:
    """Remove `--allow-protocols gs,az` from the arguments of any command, and allow these protocols in indexes."""
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == PROTOCOLS_FLAG:
            from sjepa.data.storage import ALLOWED

            os.environ[ALLOWED] = value if equals else "".join(arguments[place + 1 : place + 2])
            return arguments[:place] + arguments[place + (1 if equals else 2) :]
    return arguments


def check(arguments: list[str]) -> None:
    """Validate options that all commands share, before any work starts."""
    out = option(arguments, "--out")
    refuse_below_file(Path(out))
    if out and arguments[0] in ONE_FILE:
        refuse_folder(Path(out))


def handle_signals(command: str) -> AbstractContextManager[object]:
    """Return a block in which signals stop a command in good order."""
    return stop_requests("before the next step", until_exit=True) if command == "pretrain" else interrupt_on_signals()


def suggest_continuing(command: str, arguments: list[str]) -> str:
    """Return a hint for the message after an interruption. With --force, the work starts again."""
    continued = command in CONTINUED and "--force" not in arguments
    return "; the same command continues" if continued else "; run the same command again"


def report_lack_of_memory(command: str) -> None:
    """Print which options of the command use less memory, and whether other programs fill the GPU."""
    sharing, hint = "", LESS_MEMORY.get(command, "choose smaller sizes")
    if "torch" in sys.modules:
        from sjepa.device import describe_gpu_sharing

        sharing = describe_gpu_sharing()
    print("sjepa: not enough memory: " + "; ".join(filter(None, (sharing, hint))), file=sys.stderr)


def handle_torch_error(error: RuntimeError, command: str, arguments: list[str]) -> None:
    """Report a lack of memory or an error of the GPU, and exit. Return if the error is another one."""
    if "torch" not in sys.modules:
        return
    from sjepa.torch_private import is_failed_allocation, is_gpu_failure

    if is_failed_allocation(error):
        report_lack_of_memory(command)
        sys.exit(2)
    if is_gpu_failure(error):
        reason = str(error).splitlines()[0].removeprefix("CUDA error: ")
        hint = suggest_continuing(command, arguments)
        print(f"sjepa: the GPU reported an error: {reason}{hint}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(TEMPORARY)  # an orderly exit frees memory of the GPU, and torch aborts the process if that fails


def wait_for_gpu() -> None:
    """Wait for the work of this process on the GPU.

    If programs share a GPU by NVIDIA's MPS and one ends with work in progress, the others may fail or compute wrong
    results. One of several ranks does not wait, because its work may need ranks that have ended.
    """
    if "torch" not in sys.modules or not is_alone():
        return
    import torch

    if torch.cuda.is_initialized():
        with suppress(RuntimeError):
            torch.cuda.synchronize()


def leave_ranks() -> None:
    """Leave the process group. After an error, end this process at once, with the error's exit code.

    To leave in good order takes the other ranks, which may wait for this one. NCCL also waits for the CUDA graphs that
    use it, and the traceback of the error keeps them.
    """
    if "sjepa.distributed" not in sys.modules:  # Ctrl-C may have interrupted the import of torch
        return
    from sjepa import distributed

    error = sys.exc_info()[1]
    if error is None or not distributed.has_joined():
        distributed.shutdown()
        return
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1)


def main(arguments: list[str] | None = None) -> None:
    """Run a command. The default arguments are those of this process."""
    arguments = allow_protocols(sys.argv[1:] if arguments is None else arguments)
    command = arguments[0] if arguments else ""
    start_measuring()
    # Waiting threads should sleep. Spinning threads starve if anything else runs on their cores (measured: 3 instead
    # of 58 seconds of audio per second). OpenMP reads this when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    keep_freed_memory()
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files need not be UTF-8; the standard error escapes them
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with handle_signals(command):
            dispatch(arguments)
    except ReportedError:
        sys.exit(2)
    except UserError as error:
        print(f"sjepa: {error}", file=sys.stderr)
        sys.exit(TEMPORARY if isinstance(error, OutageError) else 2)
    except BrokenPipeError:  # the reader of our output has ended, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        line = describe_file_error(error)
        if line is None:
            raise
        print(f"sjepa: {line}", file=sys.stderr)
        sys.exit(2)
    except MemoryError:
        report_lack_of_memory(command)
        sys.exit(2)
    except RuntimeError as error:
        handle_torch_error(error, command, arguments)
        raise
    except (KeyboardInterrupt, StoppedError):
        print(f"sjepa: interrupted{suggest_continuing(command, arguments)}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    finally:
        wait_for_gpu()
        leave_ranks()
