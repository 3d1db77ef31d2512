"""The identity of a corpus' audio in results."""

import hashlib
from collections.abc import Iterable

from sjepa.data.storage import ByteRange, read_bytes
from sjepa.evaluate.superb.records import Utterance, sample_evenly

RECORDINGS = 64  # of a corpus whose contents are read
BYTES = 2**20  # at most, of each


def hash_audio(utterances: Iterable[Utterance]) -> str:
    """Return a hash of the sizes of all recordings and of the contents of some. It does not depend on their place."""
    recordings: dict[str, ByteRange] = {}
    for utterance in sorted(utterances, key=lambda u: (u.name.rpartition("/")[2], u.start)):
        if utterance.recording not in recordings:
            offset, size = utterance.inside
            where = ByteRange(str(utterance.path), offset, size or utterance.path.stat().st_size)
            recordings[utterance.recording] = where
    found = list(recordings.values())
    digest = hashlib.sha256(repr([place.size for place in found]).encode())
    for place in sample_evenly(found, RECORDINGS):
        digest.update(read_bytes(place._replace(size=min(place.size, BYTES))))
    return digest.hexdigest()
