"""Distinct ids for the utterances of an index, when several of its sources use the same ones."""

import hashlib
from collections import Counter
from typing import Any

import numpy as np

PLACE = ("path", "byte_offset", "start", "length")


def hash_id(identifier: str) -> int:
    """64 bits of an id: 25 million ids are compared in 200 MB, and two different ids do not collide in practice."""
    return int.from_bytes(hashlib.blake2b(identifier.encode(), digest_size=8).digest(), "little")


class DistinctIds:
    """Renames utterances whose id occurred before: the second `a` becomes `a~2`. The same audio is used only once.

    `keys` are the hashed ids of all utterances, and parts are passed in the order of these keys.
    """

    def __init__(self, keys: np.ndarray):
        self.known, counts = np.unique(keys, return_counts=True)
        self.is_repeated = counts > 1
        self.counts = Counter[int]()
        self.seen: set[int] = set()  # id and place of each utterance with a repeated id, hashed to save memory
        self.made: set[int] = set()

    def resolve(self, part: Any) -> tuple[dict[int, str], np.ndarray]:
        """The new ids of a part by row, and which of its utterances to keep. Only repeated ids are read."""
        renamed: dict[int, str] = {}
        keys = part["key"].to_numpy()
        keep = np.ones(len(part), dtype=bool)
        rows = np.flatnonzero(self.is_repeated[np.searchsorted(self.known, keys)])
        for row, utterance in zip(rows.tolist(), part.select(("id", *PLACE)).take(rows).to_pylist(), strict=True):
            key = int(keys[row])
            audio = hash((key, *(utterance[name] for name in PLACE)))
            keep[row] = audio not in self.seen
            if keep[row]:
                self.seen.add(audio)
                self.counts[key] += 1
                if self.counts[key] > 1:
                    renamed[row] = self.rename(utterance["id"], key)
        return renamed, keep

    def rename(self, identifier: str, key: int) -> str:
        """The id with the next number that makes it distinct from all others."""
        while self.is_taken(made := hash_id(name := f"{identifier}~{self.counts[key]}")):
            self.counts[key] += 1
        self.made.add(made)
        return name

    def is_taken(self, key: int) -> bool:
        place = np.searchsorted(self.known, np.uint64(key))
        return key in self.made or key in self.known[place : place + 1].tolist()
