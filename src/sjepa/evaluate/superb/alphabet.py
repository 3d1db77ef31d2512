"""Characters of any language: how transcripts are spelled, and the symbols that a corpus needs."""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sjepa.evaluate.superb.text import WORD_END, Characters, SlotCharacters

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", WORD_END)
UNKNOWN, MISSING = 3, "\ufffd"
APOSTROPHES = str.maketrans({"’": "'", "ʼ": "'", "`": "'"})


def spell(text: str) -> str:
    """Lower-case words of letters, marks, digits and apostrophes, divided by single spaces."""
    text = unicodedata.normalize("NFC", text).translate(APOSTROPHES).lower()
    kept = "".join(c if unicodedata.category(c)[0] in "LMN" or c == "'" else " " for c in text)
    return " ".join(kept.split())


def letters(texts: Iterable[str]) -> tuple[str, ...]:
    """All characters of some texts but the space, in order."""
    return tuple(sorted({character for text in texts for character in text if not character.isspace()}))


@dataclass(frozen=True)
class Alphabet(Characters):
    """The characters of a corpus's training transcripts; one that only dev or test has counts as an error."""

    @staticmethod
    def of(texts: Iterable[str]) -> "Alphabet":
        return Alphabet((*SPECIAL, *(letter for letter in letters(texts) if letter not in SPECIAL)))

    def encode(self, text: str) -> list[int]:
        places = {symbol: place for place, symbol in enumerate(self.symbols)}
        spelled = "".join(word.replace(WORD_END, MISSING) + WORD_END for word in text.split())
        return [*(places.get(character, UNKNOWN) for character in spelled), 2]

    def transcribe(self, numbers: Sequence[int]) -> str:
        known = (MISSING if number == UNKNOWN else self.symbols[number] for number in numbers if number >= UNKNOWN)
        return "".join(known).replace(WORD_END, " ")


@dataclass(frozen=True)
class TaggedCharacters(SlotCharacters):
    """Characters of a corpus with marks around what is tagged."""

    alphabet: tuple[str, ...] = ()

    @property
    def symbols(self) -> tuple[str, ...]:
        marks = [mark + slot for slot in self.slots for mark in ("B-", "E-")]
        return ("<pad>", "<eos>", "<unk>", " ", *self.alphabet, *marks)
