"""The plan of batches and the reader."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from conftest import babble
from hypothesis import given, settings
from hypothesis import strategies as st

from sjepa import UserError
from sjepa.audio.augment import AugmentConfig
from sjepa.audio.io import BadAudioError, read_audio
from sjepa.data.corpus import decode, scan_folder
from sjepa.data.loader import BatchReader, load
from sjepa.data.masking import MaskConfig
from sjepa.data.opening import open_corpus
from sjepa.data.sampler import BatchPlan

BUCKETS = (1.0, 2.0, 4.0, 8.0)


def plan_of(lengths: np.ndarray, **settings: object) -> BatchPlan:
    return BatchPlan(lengths, **{"seconds": 40.0, "buckets": BUCKETS, "seed": 0, **settings})  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(count=st.integers(4, 400), world_size=st.integers(1, 4), seed=st.integers(0, 99), epoch=st.integers(0, 5))
def test_an_epoch_has_each_utterance_at_most_once_and_crops_fit(
    count: int, world_size: int, seed: int, epoch: int
) -> None:
    lengths = np.random.default_rng(seed).integers(16_000, 200_000, count)
    plan = plan_of(lengths, seed=seed).epoch(epoch)
    seen = np.concatenate([plan[i].utterances for i in range(len(plan))])
    assert len(seen) == len(set(seen.tolist())) > 0
    for i in range(len(plan)):
        batch = plan[i]
        assert (lengths[batch.utterances] >= batch.samples).all()
        assert len(batch.utterances) * batch.samples <= 40 * 16_000
        shares = [batch.places(rank, world_size) for rank in range(world_size)]
        assert [place for share in shares for place in share] == list(range(len(batch.utterances)))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    # What is left out does not fill one more batch of the shortest bucket.
    assert len(lengths) - len(seen) < 40


def test_the_plan_is_a_pure_function_of_seed_and_epoch() -> None:
    lengths = np.random.default_rng(0).integers(16_000, 200_000, 500)
    a, b = plan_of(lengths).epoch(3), plan_of(lengths).epoch(3)
    assert all(np.array_equal(a[i].utterances, b[i].utterances) for i in range(len(a)))
    assert not np.array_equal(plan_of(lengths).epoch(4).utterances, a.utterances)


def test_an_epoch_is_planned_once_while_it_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = []
    plan_epoch = BatchPlan.plan_epoch
    monkeypatch.setattr(BatchPlan, "plan_epoch", lambda plan, epoch: planned.append(epoch) or plan_epoch(plan, epoch))
    plan = plan_of(np.random.default_rng(0).integers(16_000, 200_000, 500))
    first = plan.epoch(3).utterances.copy()
    assert np.array_equal(next(plan.batches(3, 0)).utterances, plan.epoch(3)[0].utterances)
    assert not np.array_equal(plan.epoch(4).utterances, first)
    assert np.array_equal(plan.epoch(3).utterances, first)
    assert planned == [3, 4, 3]


def test_there_may_be_many_buckets() -> None:
    buckets = tuple(0.1 * number for number in range(1, 301))
    plan = plan_of(np.array([16_000, 400_000]), buckets=buckets, seconds=1.0)
    assert sorted(plan.epoch(0).lengths().tolist()) == [16_000, 400_000]


def test_so_many_batches_are_as_few_as_make_up_some_audio() -> None:
    epoch = plan_of(np.random.default_rng(0).integers(16_000, 200_000, 90)).epoch(0)
    seconds = [len(epoch[i].utterances) * epoch[i].samples / 16_000 for i in range(len(epoch))]
    for asked in (0.5, 40.0, sum(seconds[:3]), 200.0, sum(seconds)):
        found = epoch.count_batches(asked)
        assert sum(seconds[: found - 1]) < asked <= sum(seconds[:found])
    assert epoch.count_batches(1e9) == len(epoch)


def test_the_frames_of_some_audio_are_those_that_an_encoder_would_give() -> None:
    epoch = plan_of(np.random.default_rng(0).integers(16_000, 200_000, 90)).epoch(0)
    for hours, batches in ((0.001, 1), (1e9, len(epoch))):
        specs = [epoch[index] for index in range(batches)]
        encoded = [torch.zeros(len(spec.utterances), spec.samples).unfold(1, 400, 320) for spec in specs]
        assert epoch.count_frames(hours) == sum(windows.shape[0] * windows.shape[1] for windows in encoded)


def test_continuing_from_any_position_gives_the_same_batches() -> None:
    plan = plan_of(np.random.default_rng(0).integers(16_000, 100_000, 90))
    stream = plan.batches(0, 0)
    first = [next(stream) for _ in range(40)]
    for skip in (0, 3, 11, 29):
        later = plan.batches(first[skip].epoch, first[skip].index)
        for expected in first[skip:]:
            got = next(later)
            assert (got.epoch, got.index) == (expected.epoch, expected.index)
            assert np.array_equal(got.utterances, expected.utterances)


def test_a_corpus_smaller_than_a_batch_still_trains_and_too_short_ones_are_refused() -> None:
    plan = plan_of(np.array([50_000, 20_000, 16_000])).epoch(0)
    assert len(plan) == 1
    assert sorted(plan[0].utterances.tolist()) == [0, 1, 2]
    assert plan[0].samples == 16_000  # the longest bucket that all of them fill
    assert plan_of(np.array([150_000, 140_000])).epoch(0)[0].samples == 128_000
    with pytest.raises(UserError, match="shorter than the shortest bucket"):
        plan_of(np.array([5000, 9000]))


@pytest.mark.parametrize(
    ("world_size", "accumulate", "fits"), [(5, 1, True), (2, 2, True), (6, 1, False), (2, 3, False)]
)
def test_more_ranks_or_parts_than_utterances_in_a_batch_are_refused(
    world_size: int, accumulate: int, fits: bool
) -> None:
    plan = plan_of(np.full(50, 8 * 16_000))  # five utterances of 8 s in a batch of 40 s
    if fits:
        plan.require_parts(world_size, accumulate)
    else:
        with pytest.raises(
            UserError, match=f"cannot share a batch of 5 utterances: use at most {5 // accumulate} rank"
        ):
            plan.require_parts(world_size, accumulate)


def test_a_corpus_of_three_utterances_is_too_small_for_four_ranks() -> None:
    with pytest.raises(UserError, match="4 ranks cannot share a batch of 3 utterances: use at most 3 ranks"):
        plan_of(np.array([50_000, 20_000, 16_000])).require_parts(4, 1)


def reader_of(folder: Path, rank: int = 0, world_size: int = 1, cached: bool = True) -> BatchReader:
    corpus = scan_folder(folder, 2.0)
    corpus = decode(corpus) if cached else corpus
    return BatchReader(corpus, MaskConfig(), AugmentConfig(), seed=5, rank=rank, world_size=world_size)


def test_ranks_share_a_batch_without_overlap_and_see_what_one_rank_would(corpus: Path) -> None:
    spec = BatchPlan(reader_of(corpus).corpus.length, seconds=6.0, buckets=(1.0,), seed=0).epoch(0)[0]
    whole = reader_of(corpus)[spec]
    halves = [reader_of(corpus, rank, 2)[spec] for rank in (0, 1)]
    assert torch.equal(torch.cat([half.waveforms for half in halves]), whole.waveforms)
    assert torch.equal(torch.cat([half.masks for half in halves]), whole.masks)


def test_decoding_as_needed_gives_the_same_batches_as_decoding_ahead(corpus: Path) -> None:
    ahead, needed = reader_of(corpus), reader_of(corpus, cached=False)
    plan = BatchPlan(ahead.corpus.length, seconds=4.0, buckets=(1.0, 1.2), seed=0)
    streams = [
        load(reader, plan, (0, 1), workers, torch.device("cpu")) for reader, workers in ((ahead, 0), (needed, 2))
    ]
    for _ in range(6):
        a, b = (next(stream) for stream in streams)
        assert torch.equal(a.waveforms, b.waveforms)
        assert a.position == b.position


def test_a_crop_is_the_stated_stretch_of_the_file(corpus: Path) -> None:
    loaded = scan_folder(corpus, 2.0)
    whole = read_audio(loaded.name(3))
    np.testing.assert_allclose(loaded.read(3, 1000, 500) / 32768, whole[1000:1500], atol=1 / 32768)


def test_long_files_become_pieces_and_other_rates_and_channels_are_handled(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "long.flac", babble(7.5, 0), 16_000)
    tone = np.sin(2 * np.pi * 440 * np.arange(44_100 * 2) / 44_100) * 0.3
    soundfile.write(tmp_path / "stereo44.wav", np.stack([tone, tone], 1), 44_100)
    soundfile.write(tmp_path / "low.wav", 0.3 * np.sin(2 * np.pi * 440 * np.arange(16_000) / 8_000), 8_000)
    loaded = open_corpus(tmp_path, 2.0, "memory", 1.0)
    assert len(loaded) == 4 + 1 + 1
    pieces = np.concatenate([loaded.read(i) for i in range(4)])
    np.testing.assert_allclose(pieces / 32768, babble(7.5, 0)[: len(pieces)], atol=1e-4)
    expected = 0.3 * np.sin(2 * np.pi * 440 * np.arange(32_000) / 16_000)
    for index in (4, 5):
        samples = loaded.read(index) / 32768
        n = min(len(samples), len(expected)) - 400
        assert np.abs(samples[400:n] - expected[400:n]).max() < 0.01


def test_a_stretch_of_a_resampled_file_equals_the_same_stretch_of_the_whole(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    soundfile.write(tmp_path / "a.wav", rng.normal(size=44_100 * 3) * 0.1, 44_100, subtype="FLOAT")
    whole = read_audio(tmp_path / "a.wav")
    for start in (0, 1600, 16_000):
        piece = read_audio(tmp_path / "a.wav", start, 9_000)
        assert len(piece) == 9_000
        if start % 160 == 0:
            assert np.abs(piece[200:-200] - whole[start + 200 : start + 8_800]).max() < 1e-3


def test_unusable_files_are_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    soundfile.write(tmp_path / "good.wav", babble(1.5, 1), 16_000)
    (tmp_path / "text.wav").write_text("not audio at all")
    (tmp_path / "empty.flac").write_bytes(b"")
    soundfile.write(tmp_path / "short.wav", np.ones(399) * 0.1, 16_000)
    soundfile.write(tmp_path / "silence.wav", np.zeros(20_000), 16_000)
    soundfile.write(tmp_path / "nan.wav", np.full(20_000, np.nan), 16_000, subtype="FLOAT")
    soundfile.write(tmp_path / "opposite.wav", np.outer(babble(1.5, 3), [1, -1]), 16_000)
    soundfile.write(tmp_path / "whole.flac", babble(2.0, 2), 16_000)
    cut = (tmp_path / "whole.flac").read_bytes()
    (tmp_path / "cut.flac").write_bytes(cut[: len(cut) // 2])
    loaded = open_corpus(tmp_path, 15.0, "auto", 1.0)
    names = [Path(loaded.name(index)).name for index in range(len(loaded))]
    for index, name in enumerate(names):
        if name not in ("good.wav", "whole.flac"):  # it keeps its place, so that plans do not depend on memory
            with pytest.raises(BadAudioError, match=name):
                loaded.read(index)
    assert sorted(names) == ["good.wav", "nan.wav", "opposite.wav", "silence.wav", "whole.flac"]
    reasons = "\n".join(loaded.refused)
    for name in ("text.wav", "empty.flac", "short.wav", "silence.wav", "nan.wav", "cut.flac"):
        assert name in reasons
    assert "opposite.wav: its channels cancel each other" in reasons
    assert "2 utterances, 0.00 hours; 7 left out" in capsys.readouterr().out


def test_a_file_in_pieces_is_named_once_and_its_reason_stays_with_each_piece(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    soundfile.write(tmp_path / "good.wav", babble(1.5, 1), 16_000)
    soundfile.write(tmp_path / "nan.wav", np.full(60_000, np.nan), 16_000, subtype="FLOAT")
    (tmp_path / "text.wav").write_text("not audio at all")
    loaded = open_corpus(tmp_path, 2.0, "memory", 1.0)
    assert "1 utterance, 0.00 hours; 2 left out" in capsys.readouterr().out
    text, nan = loaded.refused
    assert "text.wav" in text
    assert nan == f"{tmp_path / 'nan.wav'}: some samples are not finite (NaN or infinite)"
    pieces = [index for index in range(len(loaded)) if loaded.name(index).endswith("nan.wav")]
    assert len(pieces) == 2
    for piece in pieces:
        with pytest.raises(BadAudioError) as error:
            loaded.read(piece)
        assert str(error.value) == nan


def test_a_damaged_file_found_while_training_is_replaced_and_counted(corpus: Path, tmp_path: Path) -> None:
    for path in corpus.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    reader = reader_of(tmp_path, cached=False)
    (tmp_path / "03.wav").write_bytes((corpus / "03.wav").read_bytes()[:2000])
    spec = BatchPlan(reader.corpus.length, seconds=12.0, buckets=(1.0,), seed=0).epoch(0)[0]
    batch = reader[spec]
    assert batch.waveforms.shape == (12, 16_000)
    assert len(batch.bad) == 1
    assert "03.wav" in batch.bad[0]


def test_links_that_loop_end(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", babble(1.0, 0), 16_000)
    (tmp_path / "loop").symlink_to(tmp_path)
    assert len(scan_folder(tmp_path, 2.0)) == 1


def test_a_silent_file_has_its_place_in_memory_as_on_disk(tmp_path: Path) -> None:
    for index in range(6):
        sound = babble(1.5, index) if index != 2 else np.zeros(24_000, np.float32)
        soundfile.write(tmp_path / f"{index}.wav", sound, 16_000)
    ahead, needed = reader_of(tmp_path), reader_of(tmp_path, cached=False)
    assert len(ahead.corpus) == len(needed.corpus) == 6
    assert ahead.corpus.fingerprint() == needed.corpus.fingerprint()
    spec = BatchPlan(ahead.corpus.length, seconds=6.0, buckets=(1.0,), seed=0).epoch(0)[0]
    assert 2 in spec.utterances
    a, b = ahead[spec], needed[spec]
    assert torch.equal(a.waveforms, b.waveforms)
    assert len(a.bad) == len(b.bad) == 1


@pytest.mark.parametrize("cached", [True, False])
def test_a_silent_crop_of_an_utterance_with_sound_is_no_damage(tmp_path: Path, cached: bool) -> None:
    """Half a second of speech in ten of zeros, read whole and in pieces of two seconds."""
    for index in range(4):
        padded = np.zeros(10 * 16_000, np.float32)
        padded[72_000:80_000] = babble(0.5, index)
        soundfile.write(tmp_path / f"{index}.wav", padded, 16_000)
    for longest in (2.0, 20.0):
        corpus = scan_folder(tmp_path, longest)
        corpus = decode(corpus) if cached else corpus
        assert corpus.refused == []
        reader = BatchReader(corpus, MaskConfig(), AugmentConfig(), seed=5)
        plan = BatchPlan(corpus.length, seconds=4.0, buckets=(1.0,), seed=0)
        for epoch in range(3):
            batch = reader[plan.epoch(epoch)[0]]
            assert batch.bad == []
            assert batch.waveforms.shape == (4, 16_000)
            assert batch.waveforms.any(1).all()
            assert torch.equal(batch.waveforms, reader[plan.epoch(epoch)[0]].waveforms)
    soundfile.write(tmp_path / "silent.wav", np.zeros(10 * 16_000), 16_000)
    if cached:  # a recording without any sound is named once
        (reason,) = decode(scan_folder(tmp_path, 2.0)).refused
        assert reason.endswith("silent.wav: silence, every sample is zero")


def test_a_batch_of_silent_files_is_filled_from_shorter_speech(tmp_path: Path) -> None:
    """The silent files alone have the length of the longer bucket, so nothing else of that length can replace them."""
    speech = babble(1.0, seed=1)
    soundfile.write(tmp_path / "speech.wav", speech, 16_000)
    for number in range(3):
        soundfile.write(tmp_path / f"silent-{number}.wav", np.zeros(2 * 16_000), 16_000)
    reader = reader_of(tmp_path)
    plan = BatchPlan(reader.corpus.length, seconds=6.0, buckets=(1.0, 2.0), seed=0)
    epoch = plan.epoch(0)
    longer = next(spec for spec in (epoch[i] for i in range(len(epoch))) if spec.samples == 32_000)
    batch = reader[longer]
    once = reader.corpus.read(reader.corpus.paths.index(str(tmp_path / "speech.wav")))
    assert len(batch.bad) == 3
    np.testing.assert_array_equal(batch.waveforms[0].numpy(), np.concatenate([once, once]))
