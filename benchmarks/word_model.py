"""A small word model for ASR-lite, to separate spelling errors from recognition errors.

pip install wordfreq
python benchmarks/word_model.py CORPORA words.arpa
sjepa superb asr --lite --encoder ENCODER --data CORPORA --language-model words.arpa   # also after a run without it

Bigrams of ASR-lite's training transcripts with an absolute discount of 0.75, backed off to unigrams. Unigrams are the
average of the frequencies in these transcripts and in wordfreq, for the 50,000 most frequent English words of wordfreq
and all words of the transcripts.
"""

import math
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

from wordfreq import top_n_list, word_frequency

from sjepa.evaluate.superb.librispeech import read_subset_fold
from sjepa.evaluate.superb.text import Characters

WORDS, DISCOUNT = 50_000, 0.75


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    fold = read_subset_fold(Path(sys.argv[1]))
    sentences = [["<s>", *str(u.label).split(), "</s>"] for u in fold.train]
    single, double = estimate_unigrams(sentences), estimate_bigrams(sentences)
    backoff = compute_backoffs(single, double)
    Path(sys.argv[2]).write_text(format_arpa(single, double, backoff))
    wanted = [word for u in fold.test for word in str(u.label).split()]
    known = sum(word in single for word in wanted) / len(wanted)
    print(f"{len(single):,} words, {len(double):,} pairs; {known:.1%} of the words of test have an entry")


def estimate_unigrams(sentences: list[list[str]]) -> dict[str, float]:
    """Return the probabilities of all words and of the sentence end, which sum to 1."""
    counts = Counter(word for sentence in sentences for word in sentence[1:])
    letters = set(Characters().symbols[5:])
    frequent = {word.upper() for word in top_n_list("en", WORDS)}
    vocabulary = {word for word in frequent if set(word) <= letters} | counts.keys()
    elsewhere = {word: word_frequency(word.lower(), "en", minimum=1e-8) for word in vocabulary - {"</s>"}}
    spoken, written = counts.total(), sum(elsewhere.values())
    ends = counts["</s>"] / spoken
    mixed = {w: 0.5 * counts[w] / spoken + 0.5 * (1 - ends) * p / written for w, p in elsewhere.items()}
    return mixed | {"</s>": ends}


def estimate_bigrams(sentences: list[list[str]]) -> dict[tuple[str, str], float]:
    """Return the discounted probability of each word pair."""
    pairs = Counter(pair for sentence in sentences for pair in pairwise(sentence))
    before = Counter(word for sentence in sentences for word in sentence[:-1])
    return {(a, b): (count - DISCOUNT) / before[a] for (a, b), count in pairs.items()}


def compute_backoffs(single: dict[str, float], double: dict[tuple[str, str], float]) -> dict[str, float]:
    """Return the backoff weight of each word, which makes the probabilities after it sum to 1."""
    left, covered = Counter[str](), Counter[str]()
    for (a, b), probability in double.items():
        left[a] += probability
        covered[a] += single[b]
    return {a: (1 - left[a]) / (1 - covered[a]) for a in left}


def format_arpa(single: dict[str, float], double: dict[tuple[str, str], float], backoff: dict[str, float]) -> str:
    lines = ["\\data\\", f"ngram 1={len(single) + 2}", f"ngram 2={len(double)}", "", "\\1-grams:", "-99\t<unk>"]
    lines.append(f"-99\t<s>\t{math.log10(backoff['<s>']):.5f}")
    lines += [f"{math.log10(p):.5f}\t{w}\t{math.log10(backoff.get(w, 1.0)):.5f}" for w, p in sorted(single.items())]
    lines += ["", "\\2-grams:"]
    lines += [f"{math.log10(p):.5f}\t{a} {b}" for (a, b), p in sorted(double.items())]
    return "\n".join([*lines, "", "\\end\\", ""])


if __name__ == "__main__":
    main()
