"""Several corpora, mixed by weight."""

import hashlib
from dataclasses import dataclass

import numpy as np

from sjepa.data.corpus import Corpus
from sjepa.data.storage import ByteRange


@dataclass(frozen=True)
class CorpusMix:
    """Corpora one after another, each with the share of its utterances that an epoch uses.

    An epoch is the largest amount of audio for which the weights hold and no utterance repeats. The corpus that is
    scarcest for its weight is used whole, every other in part. The next epoch continues where that part ended.
    """

    corpora: tuple[Corpus, ...]
    length: np.ndarray  # of the utterances of all corpora, concatenated
    first: np.ndarray  # (corpora + 1,) index of the first utterance of each corpus
    shares: tuple[tuple[int, float], ...]
    weights: tuple[float, ...]

    @staticmethod
    def combine(corpora: list[Corpus], weights: list[float]) -> "CorpusMix":
        """Mix corpora by weight."""
        scarcity = [weight / corpus.hours for corpus, weight in zip(corpora, weights, strict=True)]
        return CorpusMix(
            tuple(corpora),
            np.concatenate([corpus.length for corpus in corpora]),
            np.concatenate([[0], np.cumsum([len(corpus) for corpus in corpora])]),
            tuple((len(corpus), rarity / max(scarcity)) for corpus, rarity in zip(corpora, scarcity, strict=True)),
            tuple(weight / sum(weights) for weight in weights),
        )

    def __len__(self) -> int:
        return len(self.length)

    @property
    def hours(self) -> float:
        return sum(corpus.hours for corpus in self.corpora)

    @property
    def block(self) -> int:
        return min(corpus.block for corpus in self.corpora)

    @property
    def refused(self) -> list[str]:
        return [reason for corpus in self.corpora for reason in corpus.refused]

    @property
    def audio(self) -> list[np.ndarray | str] | None:
        if any(corpus.audio is None for corpus in self.corpora):
            return None
        return [samples for corpus in self.corpora for samples in corpus.audio or []]

    def fingerprint(self) -> str:
        """A hash that changes with any corpus and any weight."""
        parts = [f"{corpus.fingerprint()}={w:.9g}" for corpus, w in zip(self.corpora, self.weights, strict=True)]
        return hashlib.sha256(",".join(parts).encode()).hexdigest()[:16]

    def find(self, utterance: int) -> tuple[Corpus, int]:
        which = int(np.searchsorted(self.first, utterance, side="right")) - 1
        return self.corpora[which], utterance - int(self.first[which])

    def place(self, utterance: int) -> ByteRange:
        corpus, local = self.find(utterance)
        return corpus.place(local)

    def name(self, utterance: int) -> str:
        corpus, local = self.find(utterance)
        return corpus.name(local)

    def is_piece(self, utterance: int) -> bool:
        corpus, local = self.find(utterance)
        return corpus.is_piece(local)

    def read(self, utterance: int, start: int = 0, samples: int | None = None) -> np.ndarray:
        corpus, local = self.find(utterance)
        return corpus.read(local, start, samples)
