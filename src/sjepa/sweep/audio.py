"""Check that the runs of a sweep were trained on its audio."""

import os
from functools import lru_cache

from sjepa.data.opening import open_corpus, parse_weights
from sjepa.data.storage import is_url
from sjepa.errors import UserError
from sjepa.runs.folder import RunFolder
from sjepa.sweep.file import Sweep, SweepEntry


def check_audio(sweep: Sweep, item: SweepEntry) -> None:
    """Raise UserError if a run exists and was trained on other audio than that of the sweep.

    The newest audio of a run counts. `sjepa pretrain` does not refuse other audio if a run is complete and its files
    have the same names and lengths, but a sweep would compare such a run with others.
    """
    assert item.config is not None
    run = RunFolder(item.folder)
    if not run.exists or not run.data or run.data == sweep.data:
        return
    before, now = find_places(run.data), find_places(sweep.data)
    if before == now:
        return
    # If the earlier place is not found here, the audio may have been moved, or the run was started in another folder.
    moved = not all(os.path.exists(where) for where, _ in before)
    if not moved or run.facts.get("corpus") != read_fingerprint(sweep.data, item.config.batches.max_seconds):
        raise UserError(
            f"{run} was trained on {run.data}, but the data of the sweep is {sweep.data}: give the same data, or "
            "choose another --out"
        )


def find_places(data: str) -> list[tuple[str, float | None]]:
    """Return the places of audio with their weights. They are equal if only the paths are spelled differently."""
    return [(where if is_url(where) else os.path.realpath(where), weight) for where, weight in parse_weights(data)]


@lru_cache
def read_fingerprint(data: str, max_seconds: float) -> str:
    """Return the fingerprint of audio, which is not decoded."""
    print(f"Comparing {data} with the audio of the runs", flush=True)
    return open_corpus(data, max_seconds, "none", 0.0).fingerprint()
