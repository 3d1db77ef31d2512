"""Transcripts in any language: normalised spelling, and the character set of a corpus."""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sjepa.evaluate.superb.text import WORD_END, Characters

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", WORD_END)
UNKNOWN, MISSING = 3, "\ufffd"
APOSTROPHES = str.maketrans({"’": "'", "ʼ": "'", "`": "'"})


def spell(text: str) -> str:
    """Normalise text to lower-case letters, marks, digits and apostrophes, with single spaces."""
    text = unicodedata.normalize("NFC", text).translate(APOSTROPHES).lower()
    kept = "".join(c if unicodedata.category(c)[0] in "LMN" or c == "'" else " " for c in text)
    return " ".join(kept.split())


def collect_letters(texts: Iterable[str]) -> tuple[str, ...]:
    """Return all distinct characters of some texts except spaces, sorted."""
    return tuple(sorted({character for text in texts for character in text if not character.isspace()}))


@dataclass(frozen=True)
class Alphabet(Characters):
    """The characters of the training transcripts. A character that only occurs in dev or test counts as an error."""

    @staticmethod
    def from_texts(texts: Iterable[str]) -> "Alphabet":
        return Alphabet((*SPECIAL, *(letter for letter in collect_letters(texts) if letter not in SPECIAL)))

    def encode(self, text: str) -> list[int]:
        places = {symbol: place for place, symbol in enumerate(self.symbols)}
        spelled = "".join(word.replace(WORD_END, MISSING) + WORD_END for word in text.split())
        return [*(places.get(character, UNKNOWN) for character in spelled), 2]

    def transcribe(self, numbers: Sequence[int]) -> str:
        known = (MISSING if number == UNKNOWN else self.symbols[number] for number in numbers if number >= UNKNOWN)
        return "".join(known).replace(WORD_END, " ")
