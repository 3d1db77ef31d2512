"""CTC decoding: greedy, or beam search with a word n-gram model."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from sjepa.errors import UserError
from sjepa.evaluate.metric import DecoderName
from sjepa.evaluate.superb.text import WORD_END, Characters
from sjepa.files import hash_file, read_text

BLANK = 0  # the number of the CTC blank


def decode_greedily(best: Sequence[int]) -> list[int]:
    """Merge repeats and drop blanks from the best symbol of each frame."""
    return [number for number, _ in itertools.groupby(best) if number != BLANK]


@dataclass(frozen=True)
class BeamSettings:
    """Settings of a beam search. KenLM scores are logarithms to base 10."""

    beam: int
    lm_weight: float
    word_score: float
    threshold: float
    sum_paths: bool
    """Whether to sum the probabilities of paths with the same text, instead of taking the best path."""


def shallow_fusion(alpha: float, beta: float, beam: int) -> BeamSettings:
    """Convert pyctcdecode's parameters: log p(text) + alpha ln p(words) + beta per word, sum of paths, threshold 10."""
    return BeamSettings(beam, alpha * math.log(10), beta, 10.0, sum_paths=True)


PAPER = shallow_fusion(0.5, 1.5, 100)
BOARD = BeamSettings(5, 2.0, -1.0, 25.0, sum_paths=False)
DECODER_SETTINGS: dict[str, BeamSettings] = {DecoderName.PAPER: PAPER, DecoderName.BOARD: BOARD}


class LanguageModel:
    """A KenLM model and the trie of its words, loaded once and shared by decoders."""

    def __init__(self, path: Path, *lexicons: Path):
        try:
            from flashlight.lib.text.decoder import SmearingMode, Trie
            from flashlight.lib.text.decoder.kenlm import KenLM
            from flashlight.lib.text.dictionary import create_word_dict
        except ImportError as error:
            needs = "flashlight-text, which needs Python 3.12 or older: pip install 'sjepa[lm]'"
            raise UserError(f"decoding with a language model needs {needs}") from error
        symbols = Characters()
        words = read_words(path, lexicons, symbols)
        self.files = {file.name: hash_file(file)[:16] for file in (path, *lexicons)}
        # The decoder requires an entry for unknown words. A score of minus infinity excludes it.
        self.dictionary = create_word_dict({word: [list(word)] for word in [*words, "<unk>"]})
        try:
            self.model = KenLM(str(path), self.dictionary)
        except RuntimeError as error:
            raise UserError(f"{path} is not a language model that KenLM reads: {last_line(error)}") from error
        self.silence = symbols.symbols.index(WORD_END)
        self.trie = Trie(len(symbols.symbols), self.silence)
        scores = {word: self.score(word) for word in words}
        nothing = self.score("<unk>")
        unknown = [word for word in words if scores[word] == nothing]
        if lexicons and len(unknown) > len(words) / 2:
            names = " and ".join(map(str, lexicons))
            raise UserError(
                f"{names} does not fit {path}: {len(unknown)} of {len(words)} words, such as {unknown[0]!r}, "
                "are unknown to the language model"
            )
        for word, score in scores.items():
            self.trie.insert(symbols.encode(word)[:-1], self.dictionary.get_index(word), score)
        self.trie.smear(SmearingMode.MAX)

    def score(self, word: str) -> float:
        """Return the log-probability of a word without context. An unknown word scores as `<unk>`."""
        _, score = self.model.score(self.model.start(False), self.dictionary.get_index(word))
        return float(score)


class BeamDecoder:
    """CTC beam search of flashlight-text over the words of a language model."""

    def __init__(self, language: LanguageModel, settings: BeamSettings):
        from flashlight.lib.text.decoder import CriterionType, LexiconDecoder, LexiconDecoderOptions

        self.language, self.settings = language, settings
        options = LexiconDecoderOptions(
            beam_size=settings.beam,
            beam_size_token=len(Characters().symbols),
            beam_threshold=settings.threshold,
            lm_weight=settings.lm_weight,
            word_score=settings.word_score,
            unk_score=-math.inf,
            sil_score=0.0,
            log_add=settings.sum_paths,
            criterion_type=CriterionType.CTC,
        )
        unknown = language.dictionary.get_index("<unk>")
        self.decoder = LexiconDecoder(
            options, language.trie, language.model, language.silence, BLANK, unknown, [], False
        )

    def describe(self) -> dict[str, Any]:
        """Return settings and files, for results."""
        return asdict(self.settings) | {"files": self.language.files}

    def __call__(self, log_probabilities: Tensor) -> str:
        """Return the best word sequence for one utterance's log-probabilities (T, V) on the CPU, or an empty string."""
        scores = log_probabilities.float().contiguous()
        found = self.decoder.decode(scores.data_ptr(), *scores.shape)
        if not found:
            return ""
        return " ".join(self.language.dictionary.get_entry(number) for number in found[0].words if number >= 0)


def read_words(language_model: Path, lexicons: Sequence[Path], symbols: Characters) -> list[str]:
    """Read the words that the task's characters can spell, from lexicons or the unigrams of an ARPA file."""
    if not language_model.is_file():
        raise UserError(f"there is no language model {language_model}")
    missing = next((lexicon for lexicon in lexicons if not lexicon.is_file()), None)
    if missing is not None:
        raise UserError(f"there is no lexicon {missing}")
    source = " and ".join(map(str, lexicons or [language_model]))
    if lexicons:
        words = [word for lexicon in lexicons for word in read_lexicon_words(lexicon)]
    else:
        words = list(read_arpa_words(language_model))
    if not words:
        raise UserError(f"{source} has no words")
    letters = set(symbols.symbols[5:])
    fitting = [word for word in words if set(word) <= letters]
    if len(fitting) < len(words) / 2:
        odd = next(word for word in words if not set(word) <= letters)
        raise UserError(
            f"the alphabet of {source} does not fit: {len(words) - len(fitting)} of {len(words)} words, such as "
            f"{odd!r}, have characters other than A-Z and the apostrophe"
        )
    return list(dict.fromkeys(fitting))


def read_lexicon_words(lexicon: Path) -> Iterator[str]:
    """Yield the first word of each line of a lexicon."""
    for line in read_text(lexicon).splitlines():
        if line.strip():
            yield line.split()[0]


def read_arpa_words(path: Path) -> Iterator[str]:
    """Yield the unigrams of an ARPA file."""
    with path.open("rb") as file:
        if not is_arpa(file):
            raise UserError(f"{path} is not an ARPA file; a KenLM binary also needs its words: --lexicon FILE")
        for line in itertools.dropwhile(lambda line: line.strip() != b"\\1-grams:", file):
            fields = line.split()
            if line.startswith(b"\\1-grams") or not fields:
                continue
            if line.startswith(b"\\"):
                return
            word = fields[1].decode(errors="replace")
            if not word.startswith("<"):
                yield word


def is_arpa(lines: Iterable[bytes]) -> bool:
    return any(line.strip() == b"\\data\\" for line in itertools.islice(lines, 20))


def last_line(error: BaseException) -> str:
    return next(reversed(str(error).strip().splitlines()), type(error).__name__)
