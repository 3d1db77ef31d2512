"""The batch script of recipes/, with stand-ins for Slurm's commands."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "recipes" / "paper.sbatch"


@pytest.mark.parametrize(
    ("code", "complete", "restarts", "requeued"),
    [
        (0, True, 0, False),
        (0, False, 0, True),  # stopped by a signal
        (1, False, 3, True),  # a node or a rank died
        (2, False, 0, False),  # a wrong setting
        (1, False, 100, False),
    ],
)
def test_a_job_goes_back_to_the_queue_until_its_run_is_complete(
    tmp_path: Path, code: int, complete: bool, restarts: int, requeued: bool
) -> None:
    commands = {
        "srun": f"exit {code}",
        "python": f"exit {0 if complete else 1}",
        "scontrol": f'echo "$@" > {tmp_path}/queue',
    }
    for name, line in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "USER": "me", "SLURM_JOB_ID": "7"}
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, SCRIPT, "corpus", "run"], env=environment | {"SLURM_RESTART_COUNT": str(restarts)}, capture_output=True
    )
    assert done.returncode == (0 if complete or requeued else code)
    assert (tmp_path / "queue").exists() == requeued
    if requeued:
        assert (tmp_path / "queue").read_text() == "requeue 7\n"
