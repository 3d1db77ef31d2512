"""Write a folder that `transformers.AutoModel` loads as a HubertModel, and `sjepa` with mixture and cluster head."""

import copy
from contextlib import suppress
from pathlib import Path

import torch

from sjepa.errors import UserError
from sjepa.export.facts import TrainingFacts
from sjepa.files import hash_file, write_whole
from sjepa.runs.encoder import Encoder

SUMS_FILE = "SHA256SUMS"


def write_hugging_face(encoder: Encoder, folder: Path, facts: TrainingFacts | None, half: bool = False) -> Encoder:
    """Write the weights, in fp16 if `half`, with mixture, cluster head and the facts about the training.

    Returns the encoder with the written weights.
    """
    with suppress(UserError):  # an encoder may have no clusters
        _ = encoder.clusters
    require_finite(encoder, "not finite numbers")
    written = encoder
    if half:
        written = copy.deepcopy(encoder).half()
        require_finite(written, "too large for fp16")
    written.save_pretrained(folder)
    if facts is not None:
        facts.save(folder)
    return written.float() if half else written


def require_finite(encoder: Encoder, problem: str) -> None:
    """Raise UserError with the problem of the weights that are not finite, if there are any."""
    broken = [name for name, weight in encoder.state_dict().items() if not bool(torch.isfinite(weight).all())]
    if broken:
        raise UserError(f"these weights are {problem}: {', '.join(broken[:3])}")


def write_checksums(folder: Path) -> None:
    """Write the SHA-256 of all files, in the format of `sha256sum -c SHA256SUMS`."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != SUMS_FILE)
    write_whole(folder / SUMS_FILE, "".join(f"{hash_file(path)}  {path.name}\n" for path in files))
