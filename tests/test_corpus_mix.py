"""Several corpora with weights: shares of audio, nothing twice in an epoch, everything equally often."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
from conftest import babble
from hypothesis import given, settings
from hypothesis import strategies as st

from sjepa import UserError
from sjepa.data.corpus import Corpus
from sjepa.data.corpus_mix import CorpusMix
from sjepa.data.opening import open_corpus, parse_weights
from sjepa.data.sampler import BatchPlan


def made_up(count: int, seed: int) -> Corpus:
    lengths = np.random.default_rng(seed).integers(16_000, 200_000, count).astype(np.int32)
    return Corpus(["x"], np.zeros(count, np.int32), np.zeros(count, np.int64), lengths)


@settings(max_examples=25, deadline=None)
@given(weight=st.floats(0.05, 0.95), sizes=st.tuples(st.integers(2_000, 9_000), st.integers(2_000, 9_000)))
def test_an_epoch_has_the_weights_shares_and_nothing_twice(weight: float, sizes: tuple[int, int]) -> None:
    corpora = [made_up(count, seed) for seed, count in enumerate(sizes)]
    mix = CorpusMix.combine(corpora, [weight, 1 - weight])
    plan = BatchPlan(mix.length, seconds=60.0, buckets=(1.0, 2.0, 4.0, 8.0), seed=0, shares=mix.shares)
    for epoch in (0, 3):
        drawn = plan.epoch(epoch).utterances
        assert len(np.unique(drawn)) == len(drawn)
        first = drawn < sizes[0]
        audio = [mix.length[drawn[part]].sum(dtype=np.int64) for part in (first, ~first)]
        assert audio[0] / sum(audio) == pytest.approx(weight, abs=0.04)
    # The corpus that is scarcest for its weight is used completely.
    assert max(share for _, share in mix.shares) == 1.0


def test_epochs_go_through_a_corpus_so_that_all_is_used_equally_often() -> None:
    mix = CorpusMix.combine([made_up(1_000, 0), made_up(9_000, 1)], [0.5, 0.5])
    plan = BatchPlan(mix.length, seconds=20.0, buckets=(1.0,), seed=0, shares=mix.shares)
    times = np.zeros(len(mix), dtype=int)
    for epoch in range(27):
        times[plan.epoch(epoch).utterances] += 1
    # Less than a batch is left over in each epoch.
    assert times[:1_000].mean() == pytest.approx(27, abs=0.3)
    assert times[1_000:].mean() == pytest.approx(3.0, abs=0.1)
    assert (times[1_000:] == 3).mean() > 0.9
    assert times[1_000:].max() <= 4


@settings(max_examples=25, deadline=None)
@given(share=st.floats(0.01, 0.99), sizes=st.tuples(st.integers(1, 12), st.integers(1, 40)), seconds=st.integers(1, 30))
def test_no_epoch_has_a_smaller_batch_than_the_plan_promises(
    share: float, sizes: tuple[int, int], seconds: int
) -> None:
    lengths = np.random.default_rng(0).integers(16_000, 100_000, sum(sizes))
    shares = ((sizes[0], 1.0), (sizes[1], share))
    plan = BatchPlan(lengths, seconds=seconds, buckets=(1.0, 2.0, 4.0), seed=0, shares=shares)
    epochs = [plan.epoch(number) for number in range(40)]
    batches = [len(epoch[index].utterances) for epoch in epochs for index in range(len(epoch))]
    assert min(batches) >= plan.smallest_batch()
    used = [int((plan.choose_buckets(number)[sizes[0] :] >= 0).sum()) for number in range(40)]
    assert max(used) - min(used) <= 1
    assert sum(used) == pytest.approx(40 * share * sizes[1], abs=1.001)


def test_a_mix_whose_epochs_are_too_small_for_the_parts_of_a_batch_is_refused() -> None:
    mix = CorpusMix.combine([made_up(400, 0), made_up(2, 1)], [0.5, 0.5])
    plan = BatchPlan(mix.length, seconds=60.0, buckets=(1.0,), seed=0, shares=mix.shares)
    with pytest.raises(UserError, match="cannot share a batch of"):
        plan.require_parts(8, 1)


def test_an_utterance_is_read_from_its_own_corpus(tmp_path: Path) -> None:
    for name, count in (("a", 2), ("b", 3)):
        (tmp_path / name).mkdir()
        for n in range(count):
            soundfile.write(tmp_path / name / f"{n}.wav", babble(1.2, 10 * count + n), 16_000)
    text = f"{tmp_path / 'a'}=0.7, {tmp_path / 'b'}=0.3"
    for cache in ("memory", "none"):
        mix = open_corpus(text, 2.0, cache, 1.0)
        assert isinstance(mix, CorpusMix)
        assert mix.hours == pytest.approx(5 * 1.2 / 3600)
        for utterance in range(5):
            np.testing.assert_allclose(
                mix.read(utterance) / 32768,
                soundfile.read(mix.name(utterance))[0],
                atol=1e-4,
            )
        assert (mix.audio is None) == (cache == "none")
    other = open_corpus(text.replace("0.7", "0.6"), 2.0, "none", 1.0)
    assert other.fingerprint() != mix.fingerprint()


def test_weights_that_make_no_sense_are_one_clear_line(corpus: Path, tmp_path: Path) -> None:
    for text in (f"{corpus}=x,{corpus}=1", f"{corpus}=1,{corpus}", f"{corpus}=0,{corpus}=1", "=0.5", f"{corpus}=inf"):
        with pytest.raises(UserError, match="is not PLACE=WEIGHT"):
            parse_weights(text)
    with pytest.raises(UserError, match="there is no folder"):
        open_corpus(f"{tmp_path / 'none'}=0.5,{corpus}=0.5", 2.0, "none", 1.0)
    odd = tmp_path / "a=b"
    odd.mkdir()
    assert parse_weights(str(odd)) == [(str(odd), 1.0)]
    assert parse_weights("https://host/shards?x=1") == [("https://host/shards?x=1", 1.0)]


def test_places_without_weights_are_used_whole(corpus: Path, tmp_path: Path) -> None:
    for name, seconds in (("a", (1.0, 1.5)), ("b", (1.2,))):
        (tmp_path / name).mkdir()
        for index, length in enumerate(seconds):
            soundfile.write(tmp_path / name / f"{index}.wav", babble(length, index), 16_000)
    both = open_corpus(f"{tmp_path / 'a'}, {tmp_path / 'b'}", 2.0, "none", 1.0)
    assert isinstance(both, CorpusMix)
    assert both.shares == ((2, 1.0), (1, 1.0))
    assert both.weights == pytest.approx((2.5 / 3.7, 1.2 / 3.7))
    with pytest.raises(UserError, match="there is no folder"):
        open_corpus(f"{corpus},{tmp_path / 'none'}", 2.0, "none", 1.0)
    assert parse_weights("s3://host/a,s3://host/b") == [("s3://host/a", None), ("s3://host/b", None)]
    assert parse_weights("https://host/a,b") == [("https://host/a,b", 1.0)]  # one URL with a comma in it
    odd = tmp_path / "a,b"
    odd.mkdir()
    assert parse_weights(str(odd)) == [(str(odd), 1.0)]
