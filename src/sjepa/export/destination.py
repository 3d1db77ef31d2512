"""The folder of an export, which appears complete or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sjepa.errors import UserError
from sjepa.export.facts import FACTS_FILE
from sjepa.export.graphs import ONNX_FILE, TORCH_FILE
from sjepa.export.hugging_face import SUMS_FILE
from sjepa.files import atomic_folder, is_used, refuse_unreadable_weights
from sjepa.locks import lock_new_folder
from sjepa.model.encoder_folder import WEIGHT_FILES, EncoderFolder, find_encoder_files
from sjepa.runs.locate import find_encoder_folder

NETWORKS = (WEIGHT_FILES[0], ONNX_FILE, TORCH_FILE)  # without them, a folder does not load


@contextmanager
def new_folder(folder: Path, force: bool, source: Path) -> Iterator[Path]:
    """Yield a temporary folder whose files move to `folder` when all are written.

    A folder that is not empty is refused. With `force`, an earlier export is replaced, and other files stay.
    """
    refuse_unreadable_weights(folder)
    refuse_used(folder, force)
    try:
        with lock_new_folder(folder):
            refuse_used(folder, force)  # again, because another process may have written it
            outdated = outdated_files(folder, source)
            last = [name for name in outdated if name in NETWORKS]
            with atomic_folder(folder, "merge", outdated, last) as partial:
                yield partial
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error}") from error


def refuse_used(folder: Path, force: bool) -> None:
    if is_used(folder) and not force:
        raise UserError(f"{folder} exists and is not empty: choose another folder, or replace its files with --force")


def outdated_files(folder: Path, source: Path) -> list[str]:
    """Return the files of an earlier export, which do not belong to the new one unless it writes them.

    An encoder that is exported into its own folder keeps its files; only their checksums change.
    """
    own = find_encoder_folder(find_encoder_files(source).path)
    if own is not None and own.resolve() == folder.resolve():
        return [SUMS_FILE]
    files = EncoderFolder(folder)
    encoder = [files.weights, files.config_file, files.preprocessor, files.clusters, files.card]
    return [*(file.name for file in encoder), FACTS_FILE, SUMS_FILE, ONNX_FILE, TORCH_FILE]
