"""The folder of an export, which appears complete or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sjepa.errors import UserError
from sjepa.files import atomic_folder, is_used, refuse_unreadable_weights
from sjepa.locks import lock_new_folder


@contextmanager
def new_folder(folder: Path, force: bool) -> Iterator[Path]:
    """Yield a temporary folder whose files move to `folder` when all are written.

    A folder that is not empty is refused. With `force`, files of the same name are replaced and others stay.
    """
    refuse_unreadable_weights(folder)
    if is_used(folder) and not force:
        raise UserError(f"{folder} exists and is not empty: choose another folder, or replace its files with --force")
    try:
        with lock_new_folder(folder), atomic_folder(folder, "merge") as partial:
            yield partial
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error}") from error
