"""The identity of a labelled corpus in results: its labels and its audio."""

import hashlib
import json
from collections.abc import Sequence

from sjepa.evaluate.audio_hash import hash_audio
from sjepa.evaluate.labelled import LabelledUtterance


def hash_corpus(corpus: Sequence[LabelledUtterance]) -> str:
    """Return a hash of all utterances with labels and audio. It does not depend on where the corpus is stored."""
    labelled = [
        (
            item.utterance.name.rpartition("/")[2],  # some corpora name an utterance by its path
            item.utterance.label,
            item.speaker,
            item.gender,
            item.chapter,
            item.phones,
            item.segments,
        )
        for item in corpus
    ]
    audio = hash_audio(item.utterance for item in corpus)
    return hashlib.sha256("\n".join([audio, *sorted(map(json.dumps, labelled))]).encode()).hexdigest()
