"""Worker processes: how they end."""

import time
from pathlib import Path

from processes import orphan


def test_a_worker_ends_soon_after_its_parent_is_killed(tmp_path: Path) -> None:
    worker = orphan(tmp_path, "from sjepa.data.workers import end_with_parent", "end_with_parent()")
    status, deadline = Path(f"/proc/{worker}/stat"), time.monotonic() + 10
    while status.exists() and status.read_text().split()[2] != "Z":  # an ended process that nobody has waited for
        assert time.monotonic() < deadline, "the worker is still there"
        time.sleep(0.1)
