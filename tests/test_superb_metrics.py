"""Metrics, symbols and decoders of the evaluation, each compared with something independent."""

import functools
import itertools
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from sjepa.errors import UserError
from sjepa.evaluate.superb import metrics
from sjepa.evaluate.superb.decode import (
    BOARD,
    PAPER,
    BeamDecoder,
    BeamSettings,
    LanguageModel,
    decode_greedily,
    shallow_fusion,
)
from sjepa.evaluate.superb.records import Fold, Utterance
from sjepa.evaluate.superb.sequences import SequenceTask
from sjepa.evaluate.superb.specaugment import SpecAugment, make_mask
from sjepa.evaluate.superb.task import Recipe
from sjepa.evaluate.superb.text import STRESSED_PHONES, Characters, Phones, SlotCharacters, mark_slots

WORDS = ["A", "AN", "CAT", "CATS", "SAT", "DON'T", "ON", "MAT"]


def sentence(generator: random.Random, most: int) -> str:
    return " ".join(generator.choices(WORDS, k=generator.randint(0, most)))


def test_error_rates_agree_with_jiwer_on_thousands_of_sentences() -> None:
    jiwer = pytest.importorskip("jiwer")
    generator = random.Random(0)
    for _ in range(300):
        count = generator.randint(1, 10)
        references = [sentence(generator, 8) or "A" for _ in range(count)]
        hypotheses = [sentence(generator, 8) for _ in range(count)]
        assert metrics.word_error_rate(hypotheses, references) == pytest.approx(100 * jiwer.wer(references, hypotheses))
        assert metrics.character_error_rate(hypotheses, references) == pytest.approx(
            100 * jiwer.cer(references, hypotheses)
        )


def slow_edit_distance(a: str, b: str) -> int:
    table = [[i + j if not i * j else 0 for j in range(len(b) + 1)] for i in range(len(a) + 1)]
    for i, j in itertools.product(range(1, len(a) + 1), range(1, len(b) + 1)):
        table[i][j] = min(table[i - 1][j] + 1, table[i][j - 1] + 1, table[i - 1][j - 1] + (a[i - 1] != b[j - 1]))
    return table[-1][-1]


def test_edit_distance_is_the_textbook_recursion() -> None:
    generator = random.Random(1)
    for _ in range(2000):
        a, b = ("".join(generator.choices("abc", k=generator.randint(0, 9))) for _ in range(2))
        assert metrics.edit_distance(a, b) == slow_edit_distance(a, b)


def marked(generator: random.Random) -> str:
    """A sentence with slots, some of them repeated."""
    pieces = []
    for _ in range(generator.randint(0, 4)):
        kind = generator.choice(["artist", "city", "date"])
        value = " ".join(generator.choices(WORDS, k=generator.randint(1, 3)))
        pieces.append(generator.choice([value, f"B-{kind} {value} E-{kind}"]))
    return " ".join(pieces)


def broken(generator: random.Random, text: str) -> str:
    """A recogniser's version of it: pieces lost, doubled or changed, marks included."""
    pieces = text.split()
    for _ in range(generator.randint(0, 3)):
        if pieces:
            place = generator.randrange(len(pieces))
            pieces[place : place + 1] = generator.choice([[], [pieces[place]] * 2, ["MAT"], ["B-city"], ["E-date"]])
    return " ".join(pieces)


def slow_slots(text: str) -> list[tuple[str, str]]:
    """s3prl's definition by hand: from each opening mark to the first closing mark of its kind, left to right."""
    found, pieces, start = [], text.split(), 0
    while start < len(pieces):
        if pieces[start].startswith("B-"):
            closing = "E-" + pieces[start][2:]
            ends = [i for i in range(start + 2, len(pieces)) if pieces[i] == closing]
            if ends:
                inside = pieces[start + 1 : ends[0]]
                # What s3prl's `clean` removes: an opening mark before something, a closing mark after something.
                kept = [
                    piece
                    for i, piece in enumerate(inside)
                    if not (piece.startswith("B-") and i + 1 < len(inside)) and not (piece.startswith("E-") and i)
                ]
                found.append((pieces[start][2:], " ".join(kept)))
                start = ends[0]
        start += 1
    return found


def slow_slot_scores(hypotheses: list[str], references: list[str]) -> tuple[float, float]:
    f1s, edits, characters = [], 0, 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        found, wanted = slow_slots(hypothesis), slow_slots(reference)
        found_types, wanted_types = {k for k, _ in found}, {k for k, _ in wanted}
        if not found_types and not wanted_types:
            f1s.append(1.0)
        elif not found_types or not wanted_types:
            f1s.append(0.0)
        else:
            precision = sum(k in wanted_types for k in found_types) / len(found_types)
            recall = sum(k in found_types for k in wanted_types) / len(wanted_types)
            f1s.append(2 * precision * recall / (precision + recall) if precision + recall else 0.0)
        for kind, value in wanted:
            candidates = [v for k, v in found if k == kind]
            edits += min([slow_edit_distance(v, value) for v in candidates] or [len(value)])
            characters += len(value)
    return 100 * sum(f1s) / len(f1s), 100 * edits / max(1, characters)


def test_slot_scores_agree_with_the_definitions_written_the_slow_way() -> None:
    generator = random.Random(2)
    for _ in range(400):
        references = [marked(generator) for _ in range(5)]
        hypotheses = [broken(generator, text) for text in references]
        f1, cer = slow_slot_scores(hypotheses, references)
        assert metrics.slot_type_f1(hypotheses, references) == pytest.approx(f1)
        assert metrics.slot_value_cer(hypotheses, references) == pytest.approx(cer), (hypotheses, references)


def test_balanced_accuracy_is_the_mean_over_classes() -> None:
    assert metrics.accuracy(["a", "a", "a", "a"], ["a", "a", "a", "b"]) == 75
    assert metrics.balanced_accuracy(["a", "a", "a", "a"], ["a", "a", "a", "b"]) == 50


def test_greedy_decoding_is_the_best_path_collapsed() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        log_probabilities = torch.randn(5, 3, generator=generator).log_softmax(1)
        table = log_probabilities.tolist()
        best = max(itertools.product(range(3), repeat=5), key=lambda path: sum(table[t][s] for t, s in enumerate(path)))
        collapsed = [s for t, s in enumerate(best) if s and (t == 0 or best[t - 1] != s)]
        assert decode_greedily(log_probabilities.argmax(1).tolist()) == collapsed


def test_symbols_are_those_of_the_specification() -> None:
    characters, phones = Characters(), Phones()
    assert len(characters.symbols) == 32
    assert characters.symbols[0] == "<s>"
    assert len(STRESSED_PHONES) == len(set(STRESSED_PHONES)) == 71
    assert characters.encode("A B")[-1] == characters.symbols.index("</s>")
    assert [characters.symbols[n] for n in characters.encode("IT'S ME")] == [*"IT'S|ME|", "</s>"]
    for text in ("IT'S ME", "A", ""):
        assert " ".join(characters.transcribe(characters.encode(text)).split()) == text
    assert phones.transcribe(phones.encode("HH AH0 L OW1")) == "HH AH0 L OW1"
    with pytest.raises(UserError, match="'É' in the label 'CAFÉ'"):
        characters.encode("CAFÉ")


def test_slot_sentences_come_back_from_their_symbols() -> None:
    tags = ["O", "artist", "artist", "O", "O", "city"]
    text = mark_slots(["play", "the", "who", ",", "in", "paris"], tags)
    assert text == "PLAY B-artist THE WHO E-artist IN B-city PARIS E-city"
    symbols = SlotCharacters(("artist", "city"))
    assert symbols.transcribe(symbols.encode(text)) == text
    iob = mark_slots(["sade", "abba", "&"], ["B-artist", "B-artist", "I-artist"])
    assert iob == "B-artist SADE E-artist B-artist ABBA AND E-artist"
    assert symbols.symbols[symbols.encode("E-MAIL")[1]] == "<unk>"
    assert symbols.transcribe(symbols.encode("U2")) == "U<unk>"  # all five characters count, as in s3prl


def test_a_slot_keeps_its_marks_next_to_punctuation() -> None:
    quoted = mark_slots(["play", "-", "sade", "!", "now"], ["O", "artist", "artist", "artist", "O"])
    assert quoted == "PLAY B-artist SADE E-artist NOW"
    assert mark_slots(["-", "sade", "."], ["B-artist", "I-artist", "I-artist"]) == "B-artist SADE E-artist"
    assert mark_slots(["a", ",", "b"], ["artist", "O", "artist"]) == "B-artist A E-artist B-artist B E-artist"
    assert mark_slots(["a", ",", "b"], ["artist"] * 3) == "B-artist A B E-artist"


def test_specaugment_masks_the_configured_amount_and_is_seeded() -> None:
    x, frames = torch.ones(3, 200, 768), torch.tensor([200, 120, 8])
    augment = SpecAugment()
    first, again, other = (augment(x, frames, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    bands, stretches = (first == 0).all(1), (first == 0).all(2)
    assert (bands.sum(1) < 4 * 50).all()
    assert (stretches.sum(1) < 2 * 40).all()
    shares = [float(make_mask(64, 768, 4, 50, torch.Generator().manual_seed(s)).float().mean()) for s in range(20)]
    assert np.mean(shares) == pytest.approx(4 * 24.5 / 768, rel=0.1)  # overlaps take a little away


def test_time_warp_moves_frames_by_at_most_five() -> None:
    ramp = torch.arange(100.0)[:, None].expand(100, 4)
    for seed in range(50):
        warped = SpecAugment().warp_time(ramp, 100, torch.Generator().manual_seed(seed))
        assert warped.shape == ramp.shape
        assert float((warped - ramp).abs().max()) < 7


# A bigram model small enough to enumerate. Logarithms to base 10, as ARPA files hold them.
UNIGRAMS = {"</s>": -0.9, "AB": -0.8, "A": -1.0, "B": -0.7, "BA": -1.2}
BIGRAMS = {("<s>", "AB"): -0.4, ("AB", "A"): -0.3, ("B", "</s>"): -0.5, ("A", "B"): -0.6}
BACKOFF = {"<s>": -0.2, "AB": -0.3, "A": -0.1, "B": -0.25, "BA": 0.0}


@pytest.fixture(scope="module")
def arpa(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = ["", "\\data\\", "ngram 1=7", "ngram 2=4", "", "\\1-grams:", "-99\t<s>\t-0.2", "-5\t<unk>"]
    lines += [f"{score}\t{word}\t{BACKOFF.get(word, 0.0)}" for word, score in UNIGRAMS.items()]
    lines += ["", "\\2-grams:", *(f"{score}\t{a} {b}" for (a, b), score in BIGRAMS.items()), "", "\\end\\", ""]
    path = tmp_path_factory.mktemp("lm") / "small.arpa"
    path.write_text("\n".join(lines))
    return path


def model_score(words: tuple[str, ...]) -> float:
    """log10 p(words </s>), by the back-off definition."""
    total = 0.0
    for before, word in itertools.pairwise(("<s>", *words, "</s>")):
        total += BIGRAMS.get((before, word), BACKOFF.get(before, 0.0) + UNIGRAMS[word])
    return total


def spoken_words(path: tuple[str, ...]) -> tuple[str, ...] | None:
    """Words of a path of symbols: collapsed, blanks dropped, every word closed by `|`; none where it is no text."""
    text = "".join(s for t, s in enumerate(path) if s != "-" and (t == 0 or path[t - 1] != s))
    words = tuple(word for word in text.split("|") if word)
    return words if text.endswith(("|" if words else "", "|")) and set(words) <= UNIGRAMS.keys() else None


@functools.cache
def all_paths(frames: int) -> list[tuple[tuple[int, ...], tuple[str, ...]]]:
    found = []
    for path in itertools.product(range(4), repeat=frames):
        words = spoken_words(tuple("-AB|"[s] for s in path))
        found += [(path, words)] if words is not None else []
    return found


def best_by_definition(table: list[list[float]], settings: BeamSettings) -> tuple[str, float]:
    """Enumerate paths and texts: the acoustic score, the model's, a reward a word. Returns the text and its margin."""
    acoustic: dict[tuple[str, ...], list[float]] = {}
    for path, words in all_paths(len(table)):
        acoustic.setdefault(words, []).append(sum(table[t][s] for t, s in enumerate(path)))
    scored = []
    for words, scores in acoustic.items():
        score = math.log(sum(map(math.exp, scores))) if settings.sum_paths else max(scores)
        score += settings.lm_weight * model_score(words) + settings.word_score * len(words)
        scored.append((score, " ".join(words)))
    (best, text), (second, _) = sorted(scored, reverse=True)[:2]
    return text, best - second


PLACES = [0, *(Characters().symbols.index(c) for c in "AB|")]  # blank, two letters, word end


def small_cases(word_end: float = 3.0) -> Iterator[torch.Tensor]:
    """Sixty random tables of six frames, the last of which is likely a word end, as the lexicon's spellings have."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        logits = torch.full((6, 32), -30.0)
        logits[:, PLACES] = 2 * torch.randn(6, 4, generator=generator)
        logits[5, PLACES[3]] += word_end
        yield logits.log_softmax(1)


@pytest.mark.parametrize("settings", [PAPER, BOARD, shallow_fusion(1.0, -0.5, 50)])
def test_the_beam_search_finds_the_best_text_by_definition(arpa: Path, settings: BeamSettings) -> None:
    pytest.importorskip("flashlight")
    decoder = BeamDecoder(LanguageModel(arpa), settings)
    right = sure = 0
    for log_probabilities in small_cases():
        text, margin = best_by_definition(log_probabilities[:, PLACES].tolist(), settings)
        if margin > 0.01:
            sure += 1
            right += decoder(log_probabilities) == text
    assert sure > 50
    assert right == sure if settings.beam > 5 else right > 0.8 * sure  # a beam of five may lose the best text


def test_the_papers_weights_are_those_of_pyctcdecode() -> None:
    """alpha weighs natural logarithms there and base-10 ones in the decoder; beta is added for each word in both."""
    assert PAPER.lm_weight == pytest.approx(0.5 * math.log(10))
    assert (PAPER.word_score, PAPER.beam, PAPER.threshold) == (1.5, 100, 10)
    assert (BOARD.lm_weight, BOARD.word_score, BOARD.beam) == (2, -1, 5)


def test_texts_are_mostly_those_of_pyctcdecode(arpa: Path) -> None:
    """It needs no word end to close a text, and may write words that are not in the lexicon: both are kept away here.

    Run where pyctcdecode 0.5 and kenlm are installed (`pip install --no-deps pyctcdecode pygtrie`, and `kenlm`).
    """
    pyctcdecode = pytest.importorskip("pyctcdecode")
    pytest.importorskip("flashlight")
    labels = ["", *(" " if c == "|" else c for c in Characters().symbols[1:])]
    theirs = pyctcdecode.build_ctcdecoder(labels, str(arpa), list(UNIGRAMS)[1:], alpha=0.5, beta=1.5)
    ours = BeamDecoder(LanguageModel(arpa), PAPER)
    texts = [(ours(case), theirs.decode(case.numpy(), beam_width=100)) for case in small_cases(word_end=20.0)]
    assert (
        sum(a == b for a, b in texts) >= 56
    )  # of 60; the rest end in a space, after which it scores the end otherwise


def test_language_models_that_do_not_fit_are_refused_in_one_line(arpa: Path, tmp_path: Path) -> None:
    pytest.importorskip("flashlight")
    lower = tmp_path / "lower.arpa"
    lower.write_text(re.sub(r"\b[AB]+\b", lambda m: m[0].lower(), arpa.read_text()))
    with pytest.raises(UserError, match=r"alphabet of .*lower\.arpa does not fit: 4 of 4 words, such as 'ab'"):
        LanguageModel(lower)
    with pytest.raises(UserError, match="there is no language model"):
        LanguageModel(tmp_path / "none.arpa")
    binary = tmp_path / "model.bin"
    binary.write_bytes(b"mmap lm http://kheafield.com/code format version 5\n" + bytes(100))
    with pytest.raises(UserError, match="also needs its words: --lexicon"):
        LanguageModel(binary)
    lexicon = tmp_path / "words.lst"
    lexicon.write_text("AB\tA B |\nA\tA |\n")
    with pytest.raises(UserError, match="not a language model that KenLM reads"):
        LanguageModel(binary, lexicon)
    assert LanguageModel(arpa, lexicon).dictionary.get_index("AB") >= 0
    with pytest.raises(
        UserError, match=r"words\.lst does not fit .*lower\.arpa: 2 of 2 words, such as 'AB', are unknown"
    ):
        LanguageModel(lower, lexicon)
    lexicon.write_text("AB\tA B |\nA\tA |\nBBB\tB B B |\n")  # one that the model lacks is no mistake
    assert LanguageModel(arpa, lexicon).dictionary.get_index("BBB") >= 0
    lexicon.write_text("\n")
    with pytest.raises(UserError, match=r"words\.lst has no words"):
        LanguageModel(arpa, lexicon)


def s3prl_unit_errors(predicted: list[int], target: str) -> tuple[int, int]:
    """Edits and length of one utterance in s3prl's ASR: tokens of its dictionary, the last word mark among them."""
    symbols = Characters().symbols
    units = [symbols[number] for number in decode_greedily(predicted) if number not in (0, 2)]
    wanted = list(target.replace(" ", "|") + "|")
    return slow_edit_distance(units, wanted), len(wanted)  # type: ignore[arg-type]


def characters_task(labels: list[str]) -> SequenceTask:
    recipe = Recipe(steps=1, lr=1e-3, batch=1, accumulate=1, evaluate_every=1)
    made = [Utterance(str(number), Path(f"{number}.wav"), label) for number, label in enumerate(labels)]
    fold = Fold("all", made, made, made)
    return SequenceTask("asr", recipe, [fold], (metrics.WER, metrics.CER), symbols=Characters())


def test_padding_is_neither_transcribed_nor_in_the_loss() -> None:
    labels, frames = ["CAT ON", "A", "MAT"], torch.tensor([50, 9, 23])
    task, outputs = characters_task(labels), torch.randn(3, 50, 32)
    alone = [
        (outputs[row : row + 1, :count], frames[row : row + 1], labels[row : row + 1])
        for row, count in enumerate(frames.tolist())
    ]
    assert task.predict(outputs, frames) == [task.predict(each, count)[0] for each, count, _ in alone]
    losses = torch.stack([task.loss(*each) for each in alone])
    torch.testing.assert_close(task.loss(outputs, frames, labels), losses.mean())


def test_cer_counts_word_marks_as_s3prl_does() -> None:
    generator = random.Random(0)
    labels = [sentence(generator, 5) or "A" for _ in range(40)]
    task = characters_task(labels)
    frames = 60
    outputs, errors, units = torch.zeros(len(labels), frames, 32), 0, 0
    for row, label in zip(outputs, labels, strict=True):
        spelled = [number for symbol in Characters().encode(label)[:-1] for number in (0, symbol)]
        # A frame or two of another symbol, `|` more often than others, at the end too.
        path = [4 if generator.random() < 0.05 else n if generator.random() < 0.9 else 5 for n in spelled][:frames]
        path += [0] * (frames - len(path))
        row[torch.arange(frames), torch.tensor(path)] = 1.0
        more, length = s3prl_unit_errors(path, label)
        errors, units = errors + more, units + length
    predictions = task.predict(outputs, torch.full((len(labels),), frames))
    assert task.score(predictions, labels)["cer"] == pytest.approx(100 * errors / units)
    assert "  " not in task.as_text(predictions[0])
    assert task.as_text(predictions[0]) == task.as_text(predictions[0]).strip()
    assert task.score([task.complete(label) for label in labels], labels) == {"wer": 0.0, "cer": 0.0}
    assert task.score([label.rstrip() for label in labels], labels)["cer"] > 0  # the last mark is missing
