"""Symbols of the sequence tasks: text to numbers and back. Number 0 is the CTC blank."""

import itertools
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sjepa.errors import UserError
from sjepa.files import read_text

WORD_END = "|"
VOWELS = ("AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW")
CONSONANTS = (
    *("B", "CH", "D", "DH", "F", "G", "HH", "JH", "K", "L", "M", "N"),
    *("NG", "P", "R", "S", "SH", "T", "TH", "V", "W", "Y", "Z", "ZH"),
)
# SUPERB's 71 phones: vowels with stress, consonants, silence and spoken noise.
STRESSED_PHONES = ("SIL", "SPN", *(vowel + stress for vowel in VOWELS for stress in "012"), *CONSONANTS)


class Spelling:
    """Base class of a task's symbols."""

    def transcribe(self, numbers: Sequence[int]) -> str:
        """Return the text for scoring, which may have additional spaces."""
        raise NotImplementedError

    def complete(self, text: str) -> str:
        """Convert a decoder's words to the text for scoring."""
        return text


@dataclass(frozen=True)
class Characters(Spelling):
    """ASR's 32 symbols: blank, pad, end, unknown; then `|` after every word, A to Z, apostrophe."""

    symbols: tuple[str, ...] = ("<s>", "<pad>", "</s>", "<unk>", WORD_END, *string.ascii_uppercase, "'")

    def encode(self, text: str) -> list[int]:
        """Encode each word's characters and `|`, and a final `</s>`."""
        spelled = "".join(word + WORD_END for word in text.split())
        return [*encode_pieces(self.symbols, spelled, text), 2]

    def transcribe(self, numbers: Sequence[int]) -> str:
        """Replace every `|` by a space, including the last. s3prl counts each as a character."""
        return "".join(self.symbols[n] for n in numbers if n > 3).replace(WORD_END, " ")

    def complete(self, text: str) -> str:
        return "".join(f"{word} " for word in text.split())


@dataclass(frozen=True)
class Phones(Spelling):
    """Phones separated by spaces. The first symbols are pad (the blank), end and unknown."""

    phones: tuple[str, ...] = STRESSED_PHONES

    @property
    def symbols(self) -> tuple[str, ...]:
        return ("<pad>", "<eos>", "<unk>", *self.phones)

    def encode(self, text: str) -> list[int]:
        return [*encode_pieces(self.symbols, text.split(), text), 1]

    def transcribe(self, numbers: Sequence[int]) -> str:
        return " ".join(self.symbols[n] for n in numbers if n > 1)


@dataclass(frozen=True)
class SlotCharacters(Spelling):
    """Characters with a mark at both ends of a slot's value: `ADD B-artist SADE E-artist NOW`."""

    slots: tuple[str, ...]
    alphabet: tuple[str, ...] = (*string.ascii_uppercase, "'")

    @property
    def symbols(self) -> tuple[str, ...]:
        marks = [mark + slot for slot in self.slots for mark in ("B-", "E-")]
        return ("<pad>", "<eos>", "<unk>", " ", *self.alphabet, *marks)

    def encode(self, text: str) -> list[int]:
        """Encode text. A mark replaces the space next to it. A character without a symbol is unknown."""
        symbols = self.symbols
        begins, ends = ({mark + slot for slot in self.slots} for mark in ("B-", "E-"))
        tokens: list[int] = []
        before = ""
        for piece in text.split():
            if before and before not in begins and piece not in ends:
                tokens.append(symbols.index(" "))
            for symbol in [piece] if piece in begins | ends else piece:
                tokens.append(symbols.index(symbol) if symbol in symbols else 2)
            before = piece
        return [*tokens, 1]

    def transcribe(self, numbers: Sequence[int]) -> str:
        symbols, text = self.symbols, ""
        for symbol in (symbols[n] for n in numbers if n > 1):
            text += {"B-": f"{symbol} ", "E-": f" {symbol}"}.get(symbol[:2], symbol)
        return " ".join(text.split())


Symbols = Characters | Phones | SlotCharacters


def encode_pieces(symbols: Sequence[str], pieces: Sequence[str], text: str) -> list[int]:
    """Return the indices of a label's pieces among the symbols."""
    places = {symbol: place for place, symbol in enumerate(symbols)}
    odd = next((piece for piece in pieces if piece not in places), None)
    if odd is not None:
        raise UserError(f"{odd!r} in the label {text[:60]!r} is not one of the task's {len(symbols)} symbols")
    return [places[piece] for piece in pieces]


def mark_slots(words: Sequence[str], tags: Sequence[str]) -> str:
    """Convert words and slot tags (plain or IOB) to a sentence with marks, without punctuation and with AND for `&`."""
    kinds = [tag.removeprefix("B-").removeprefix("I-") for tag in tags]
    before = ["", *kinds[:-1]]
    begins = (tag.startswith("B-") or kind != last for tag, kind, last in zip(tags, kinds, before, strict=True))
    slots = itertools.accumulate(begins)  # each slot has a number, and so do the words between two slots
    numbered = zip(slots, kinds, words, strict=True)
    spoken = [(slot, kind, word) for slot, kind, word in numbered if word not in "?!.,;-"]
    pieces: list[str] = []
    for (_, kind), group in itertools.groupby(spoken, key=lambda part: part[:2]):
        value = ["AND" if word == "&" else word.upper() for _, _, word in group]
        pieces += value if kind == "O" else [f"B-{kind}", *value, f"E-{kind}"]
    return " ".join(pieces)


def read_slot_names(path: Path) -> tuple[str, ...]:
    """Read slot types, one per line, without `O`."""
    if not path.is_file():
        raise UserError(f"there is no list of slots {path}: one slot type per line")
    return tuple(line.strip() for line in read_text(path).splitlines() if line.strip() not in ("", "O"))
