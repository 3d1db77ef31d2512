"""A folder that `transformers.AutoModel.from_pretrained` loads as a HubertModel, and `sjepa` with its clusters."""

import copy
from contextlib import suppress
from pathlib import Path

import torch

from sjepa.errors import UserError
from sjepa.export.facts import TrainingFacts
from sjepa.files import write_whole
from sjepa.runs.checkpoint import digest
from sjepa.runs.encoder import Encoder

SUMS_FILE = "SHA256SUMS"


def write_hugging_face(encoder: Encoder, folder: Path, facts: TrainingFacts | None, half: bool = False) -> Encoder:
    """Write the weights, in fp16 if `half`, with mixture and head, and what is known of the training.

    Returns the encoder as the folder has it.
    """
    with suppress(UserError):  # an encoder may have no clusters
        _ = encoder.clusters
    written = copy.deepcopy(encoder).half() if half else encoder
    broken = [name for name, weight in written.state_dict().items() if not bool(torch.isfinite(weight).all())]
    if broken:
        raise UserError(f"weights that fp16 cannot hold: {', '.join(broken[:3])}")
    written.save_pretrained(folder)
    if facts is not None:
        facts.save(folder)
    return written.float() if half else written


def write_checksums(folder: Path) -> None:
    """SHA-256 of all files, as `sha256sum -c SHA256SUMS` reads them."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != SUMS_FILE)
    write_whole(folder / SUMS_FILE, "".join(f"{digest(path)}  {path.name}\n" for path in files))
