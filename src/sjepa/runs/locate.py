"""Find the run or the encoder folder for a path or a name. Needs no torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sjepa.errors import UserError
from sjepa.model.card_facts import read_card_facts
from sjepa.model.encoder_folder import CONFIG_FILE, find_encoder_files
from sjepa.model.named import resolve_encoder
from sjepa.runs.folder import INITIAL_LICENCE, RunFolder


def find_run(path: Path) -> RunFolder | None:
    """Return the run at `path`, or the run that holds the folder `path`."""
    candidates = (path, path.parent) if path.is_dir() else ()
    return next((run for run in map(RunFolder, candidates) if run.exists), None)


def find_encoder(source: str | Path) -> Path:
    """Return the encoder folder or the file of weights that belongs to a run, a folder, a file or a shipped name."""
    path = resolve_encoder(source)
    if path.is_file():
        return path
    folder = find_encoder_folder(path)
    if folder is not None:
        return folder
    if RunFolder(path).exists:
        raise UserError(
            f"{path} is a run without an encoder: its first checkpoint writes one; `sjepa pretrain --out {path}` "
            "continues it"
        )
    raise UserError(f"{path} is not an encoder folder: it has no {CONFIG_FILE}{RunFolder(path).suggest_other()}")


def find_encoder_folder(path: Path, *other_files: str) -> Path | None:
    """Return `path` if it is an encoder folder, or else the encoder of the run at `path`, or else None.

    An encoder folder has config.json, or one of `other_files`.
    """
    names = (CONFIG_FILE, *other_files)
    folders = (path, RunFolder(path).encoder)
    return next((folder for folder in folders if any((folder / name).is_file() for name in names)), None)


def find_licence(source: str | Path) -> str:
    """Return the licence of an encoder, or of the weights that a run started from. Empty if it is not recorded."""
    run = find_run(resolve_encoder(source))
    if run is not None:
        return str(run.facts.get(INITIAL_LICENCE, ""))
    return read_card_facts(find_encoder_files(find_encoder(source)).card).known_licence


@contextmanager
def suggest_repair(encoder: Path) -> Iterator[None]:
    """Add to the error of an encoder of a run which command writes it again."""
    try:
        yield
    except UserError as error:
        run = RunFolder(encoder.parent)
        if encoder != run.encoder or not run.exists:
            raise
        raise UserError(f"{error}; `sjepa pretrain --out {run}` writes it again") from error


def name_encoder(folder: Path) -> str:
    """Return the folder's name, or its run's: `mine/encoder-phase1` is `mine-phase1`, `demo/run/encoder` is `demo`.

    The encoder of a run that is not complete has its step: `mine-step-5000`.
    """
    folder = folder.resolve()
    run = RunFolder(folder.parent)
    if not folder.name.startswith(run.encoder.name):
        return folder.name
    steps = run.checkpoint_steps if folder == run.encoder and run.exists else []
    if steps and not run.is_complete:
        return f"{run.name}-step-{steps[0]}"
    return run.name + folder.name.removeprefix(run.encoder.name)
