"""Speaker diarization: labels, the permutation-invariant loss and both error rates against slower code."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import superb_corpora as corpora
import torch

from sjepa.errors import UserError
from sjepa.evaluate.superb import diarization
from sjepa.evaluate.superb.corpora.libri2mix import Turn, make_activity, read_activity, write_activity
from sjepa.evaluate.superb.diarization import DiarizationHead, DiarizationTask, resample_outputs
from sjepa.evaluate.superb.diarization_error import diarization_error_rate, error_time, find_turns, frame_errors
from sjepa.evaluate.superb.protocol import LearningRateSearch
from sjepa.evaluate.superb.records import Fold, Utterance
from sjepa.evaluate.superb.task import Recipe
from sjepa.evaluate.superb.tasks import make_task
from sjepa.evaluate.superb.tasks.sd import sample_recordings
from sjepa.evaluate.upstream import load_upstream


def made_task(labels: list[np.ndarray]) -> tuple[DiarizationTask, list[Utterance]]:
    made = [Utterance(str(i), Path("x"), write_activity(label)) for i, label in enumerate(labels)]
    return DiarizationTask("sd", Recipe(1, 1e-4, 1, 1, 1), [Fold("x", made, made, made)], (), turns={}), made


def test_labels_are_written_and_read_without_loss() -> None:
    active = np.random.default_rng(0).random((50, 2)) > 0.5
    assert np.array_equal(read_activity(write_activity(active)), active)
    assert write_activity(np.array([[1, 0], [1, 1], [0, 1]], bool)) == "3: 0-2 / 1-3"
    assert not read_activity("4:  / ").any()


def test_frames_of_a_turn_are_rounded_to_the_stride() -> None:
    turns = [Turn("a", 0.0, 0.05), Turn("b", 0.031, 0.2)]
    assert write_activity(make_activity(turns, ["a", "b"], 0, 8)) == "8: 0-2 / 2-8"
    assert write_activity(make_activity(turns, ["a", "b"], 4, 8)) == "4:  / 0-4"  # begun before, ends after


def test_the_loss_takes_the_best_order_of_each_utterance() -> None:
    generator = np.random.default_rng(0)
    labels = [generator.random((frames, 2)) > 0.5 for frames in (9, 6)]
    task, made = made_task(labels)
    outputs = torch.randn(2, 9, 2)
    total = 0.0
    for row, label in zip(outputs.numpy(), labels, strict=True):
        losses = []
        for order in itertools.permutations(range(2)):
            loss = 0.0
            for frame, speaker in itertools.product(range(len(label)), range(2)):
                probability = 1 / (1 + np.exp(-row[frame, speaker]))
                wanted = label[frame, order[speaker]]
                loss -= np.log(probability if wanted else 1 - probability) / 2
            losses.append(loss)
        total += min(losses)
    loss = task.loss(outputs, torch.tensor([8, 5]), [u.label for u in made])
    assert float(loss) == pytest.approx(total / (9 + 6), rel=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_the_error_over_frames_is_that_of_a_slow_loop(seed: int) -> None:
    generator = np.random.default_rng(seed)
    predicted, wanted = generator.random((2, 40, 2)) > 0.6
    errors = speech = right = 0
    for one, other in zip(predicted, wanted, strict=True):
        missed = max(0, other.sum() - one.sum())
        false = max(0, one.sum() - other.sum())
        confused = min(one.sum(), other.sum()) - (one & other).sum()
        errors += missed + false + confused
        speech += other.sum()
        right += (one == other).sum()
    assert frame_errors(predicted, wanted) == pytest.approx((errors / speech, right / 80))


@pytest.mark.parametrize("seed", range(8))
def test_the_error_over_time_is_that_of_a_slow_loop(seed: int) -> None:
    """Every hundredth of a second on its own, for every way to match the speakers."""
    generator = np.random.default_rng(seed)

    def drawn(speakers: int) -> dict[str, list[tuple[float, float]]]:
        found = {}
        for speaker in range(speakers):
            edges = np.sort(generator.choice(500, 4, replace=False)) / 100
            found[str(speaker)] = [(float(edges[0]), float(edges[1])), (float(edges[2]), float(edges[3]))]
        return found

    predicted, wanted = drawn(int(generator.integers(1, 4))), drawn(int(generator.integers(1, 4)))

    def speaking(turns: list[tuple[float, float]], time: float) -> bool:
        return any(start <= time < end for start, end in turns)

    times = (np.arange(500) + 0.5) / 100
    columns = [*predicted, *[None] * len(wanted)]
    rates = []
    for order in itertools.permutations(columns, len(wanted)):
        errors = speech = 0
        for time in times:
            active = {name for name, turns in predicted.items() if speaking(turns, time)}
            there = [name for name, turns in wanted.items() if speaking(turns, time)]
            matched = sum(order[list(wanted).index(name)] in active for name in there)
            errors += max(len(active), len(there)) - matched
            speech += len(there)
        rates.append((errors / 100, speech / 100))
    assert error_time(predicted, wanted) == pytest.approx(min(rates))


def test_turns_pass_a_threshold_and_a_median() -> None:
    probabilities = np.array([[0.9, 0.1]] * 10 + [[0.1, 0.1]] + [[0.9, 0.45]] * 10)
    assert find_turns(probabilities, 0.02, 0.5, 1) == {"0": [(0.0, 0.2), (0.22, pytest.approx(0.42))]}
    assert find_turns(probabilities, 0.02, 0.5, 11) == {"0": [(0.0, pytest.approx(0.42))]}
    from scipy.signal import medfilt

    noisy = np.random.default_rng(0).random((200, 1))
    slow = medfilt((noisy > 0.5).astype(float), (11, 1))[:, 0]
    (turns,) = find_turns(noisy, 1.0, 0.5, 11).values()
    found = np.zeros(200)
    for start, end in turns:
        found[int(start) : int(end)] = 1
    assert np.array_equal(found, slow)


def test_the_rate_is_the_best_of_ten_settings() -> None:
    probabilities = {"a": np.tile([[0.65, 0.0]], (50, 1)), "b": np.tile([[0.9, 0.35]], (50, 1))}
    references = {"a": {"x": [(0.0, 1.0)]}, "b": {"y": [(0.0, 1.0)]}}
    assert diarization_error_rate(probabilities, references, 0.02) == 0.0  # at 0.4, 0.5 and 0.6
    references["b"]["z"] = [(0.5, 1.0)]
    assert diarization_error_rate(probabilities, references, 0.02) == pytest.approx(100 * 0.5 / 2.5)


def test_outputs_of_another_rate_fit_the_labels() -> None:
    outputs = torch.arange(6.0).view(1, 6, 1).expand(-1, -1, 2)
    assert resample_outputs(outputs, 6).equal(outputs)
    assert resample_outputs(outputs, 7)[0, :, 0].tolist() == [0, 1, 2, 3, 4, 5, 5]
    assert resample_outputs(outputs, 5)[0, :, 0].tolist() == [0, 1, 2, 3, 4]
    assert resample_outputs(outputs, 3)[0, :, 0].tolist() == [0, 2, 4]
    assert resample_outputs(outputs, 12)[0, :, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


@pytest.mark.parametrize("rate", [1, 2])
def test_chunks_of_another_frame_rate_are_joined_at_that_of_the_labels(rate: int) -> None:
    turns = [Turn("a", 0.2, 1.4), Turn("b", 1.0, 1.8)]
    chunks = [make_activity(turns, ["a", "b"], first, first + 50) for first in (0, 50)]
    task, made = made_task(chunks)
    task, made = replace(task, turns={"x": turns}), [replace(chunk, name="x") for chunk in made]
    perfect = [chunk.repeat(rate, axis=0).astype(np.float32) for chunk in chunks]
    assert task.join_chunks(perfect, made)["x"].tolist() == np.concatenate(chunks).tolist()
    assert task.score_part(perfect, made)["der"] == pytest.approx(0, abs=0.01)


@pytest.fixture(scope="module")
def mixtures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("espeakng_loader")
    return corpora.libri2mix(tmp_path_factory.mktemp("sd"))


def test_the_full_protocol_is_s3prls(mixtures: Path) -> None:
    task = make_task("sd", mixtures)
    assert isinstance(task, DiarizationTask)
    (fold,) = task.folds
    assert [len(part) for part in (fold.train, fold.dev, fold.test)] == [6, 6, 6]
    assert (task.recipe.steps, task.recipe.batch, task.recipe.accumulate, task.recipe.lr) == (30_000, 8, 4, 1e-4)
    assert task.selection.name == "frame_accuracy"
    assert sum(p.numel() for p in task.head(768).parameters()) == 4 * 512 * (768 + 512 + 2) + 512 * 2 + 2
    upstream = load_upstream("mfcc")
    samples = fold.train[0].samples
    (states,) = upstream.extract([np.zeros(samples, np.float32)])
    assert states.shape[1] + 1 == len(task.active[fold.train[0].label]) == samples // 320


def test_long_recordings_are_cut_into_chunks(mixtures: Path, tmp_path: Path) -> None:
    import soundfile

    for part in ("train", "dev", "test"):
        (tmp_path / part).mkdir()
        for table in ("wav.scp", "segments", "utt2spk", "reco2dur"):
            (tmp_path / part / table).write_text((mixtures / part / table).read_text())
    soundfile.write(tmp_path / "long.wav", np.zeros(16_000 * 81, np.float32), 16_000)
    (tmp_path / "test" / "wav.scp").write_text(f"long {tmp_path / 'long.wav'}\n")
    (tmp_path / "test" / "reco2dur").write_text("long 81.0\n")
    (tmp_path / "test" / "segments").write_text("one long 1.0 80.5\ntwo long 39.0 41.0\n")
    (tmp_path / "test" / "utt2spk").write_text("one a\ntwo b\n")
    task = make_task("sd", tmp_path)
    found = [(u.start, u.samples, u.label) for u in task.folds[0].test]
    assert found == [
        (0, 640_000, "2000: 50-2000 / 1950-2000"),
        (640_000, 640_000, "2000: 0-2000 / 0-50"),
        (1_280_000, 16_000, "50: 0-25 / "),
    ]


def test_diarization_learns_and_writes_what_the_board_expects(
    mixtures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    h5py = pytest.importorskip("h5py")
    monkeypatch.setattr(diarization, "WIDTH", 64)  # a narrow head learns this as well
    task = replace(make_task("sd", mixtures), recipe=Recipe(40, 1e-3, 6, 1, 20))
    results = LearningRateSearch(task, load_upstream("logmel"), tmp_path).run([1e-3])
    assert results["metrics"]["der"] < 60
    assert set(results["folds"][0]["dev_curve"][0]) == {"step", "loss", "frame_der", "frame_accuracy"}
    with h5py.File(tmp_path / "scoring" / "predictions" / "mix-test-0.h5") as file:
        assert file["T_hat"].shape == (task.folds[0].test[0].samples // 320, 2)
        assert 0 <= file["T_hat"][:].min() <= file["T_hat"][:].max() <= 1
    assert (tmp_path / "frame_shift").read_text() == "320\n"
    first = (tmp_path / "predictions.txt").read_text().splitlines()[0].split("\t")
    assert first[0] == "mix-test-0"
    assert first[2] == task.folds[0].test[0].label


def test_the_last_frame_comes_twice() -> None:
    torch.manual_seed(0)
    head = DiarizationHead(4)
    x = torch.randn(1, 10, 4)
    longer, _ = head.recurrent(torch.cat([x, x[:, -1:]], dim=1))
    assert torch.equal(head(x, torch.tensor([10])), head.output(longer))
    assert torch.equal(head.eval()(x, torch.tensor([10])), head.output(longer))


def test_batching_changes_the_last_frame_in_training_as_in_s3prl_but_not_in_evaluation() -> None:
    torch.manual_seed(0)
    head = DiarizationHead(4)
    x, frames = torch.randn(2, 10, 4), torch.tensor([10, 7])
    x[1, 7:] = 0
    alone = head(x[1:, :7], frames[1:])[0]
    padded, _ = head.recurrent(x[1:, :8])  # s3prl repeats the end of the padded batch, so this frame is padding
    assert torch.allclose(head(x, frames)[1, :8], head.output(padded)[0], atol=1e-6)
    assert not torch.allclose(head(x, frames)[1, 7], alone[7], atol=1e-3)
    assert torch.allclose(head.eval()(x, frames)[1, :8], alone, atol=1e-6)


def test_lite_keeps_all_chunks_of_a_recording() -> None:
    chunks = [Utterance(name, Path(f"{name}.wav"), "", start=start) for name in "abcd" for start in (0, 1, 2)]
    kept = sample_recordings(chunks, 2)
    assert [(chunk.name, chunk.start) for chunk in kept] == [(name, start) for name in "ac" for start in (0, 1, 2)]
    assert sample_recordings(chunks, 4) == chunks


def test_lite_scores_every_recording_whole(tmp_path: Path) -> None:
    """A perfect head makes no error, also if the recordings have more chunks than the lite protocol has recordings."""
    for part, count in (("train", 1), ("dev", 1), ("test", 500)):
        folder = tmp_path / part
        folder.mkdir()
        names = [f"{part}-{number}" for number in range(count)]
        (folder / "x.wav").touch()
        (folder / "wav.scp").write_text("".join(f"{name} x.wav\n" for name in names))
        (folder / "reco2dur").write_text("".join(f"{name} 70.0\n" for name in names))
        (folder / "segments").write_text("".join(f"1{n} {n} 1.0 30.0\n2{n} {n} 20.0 60.0\n" for n in names))
        (folder / "utt2spk").write_text("".join(f"1{n} one\n2{n} two\n" for n in names))
    task = make_task("sd", tmp_path, lite=True)
    assert isinstance(task, DiarizationTask)
    test = task.folds[0].test
    perfect = [task.active[u.label].numpy() for u in test]
    assert task.score_part(perfect, test)["der"] == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize(
    ("table", "text", "message"),
    [
        ("segments", "x nowhere 0 1\n", "utt2spk does not have x, which segments has"),
        ("utt2spk", "", "utt2spk does not have"),
        ("reco2dur", "", "reco2dur does not have mix-train-0"),
        ("wav.scp", "mix-train-0 sph2pipe x.sph |\n", "commands are not supported"),
        ("wav.scp", "mix-train-0 nowhere.wav\n", "wav.scp does not have mix-train-1"),
        ("wav.scp", "../../mine x.wav\n", r"wav\.scp: '\.\./\.\./mine' is not a plain file name"),
        ("wav.scp", ".. x.wav\n", r"wav\.scp: '\.\.' is not a plain file name"),
        ("segments", "x y\n", "line 1: 'x y' does not have 4 columns"),
        ("reco2dur", "mix-train-0 long\n", "'long' is not a time in seconds"),
    ],
)
def test_bad_tables_are_refused(mixtures: Path, tmp_path: Path, table: str, text: str, message: str) -> None:
    for part in ("train", "dev", "test"):
        (tmp_path / part).mkdir()
        for name in ("wav.scp", "segments", "utt2spk", "reco2dur"):
            (tmp_path / part / name).write_text((mixtures / part / name).read_text())
    (tmp_path / "train" / table).write_text(text)
    with pytest.raises(UserError, match=message):
        make_task("sd", tmp_path)
    (tmp_path / "train" / table).unlink()
    with pytest.raises(UserError, match=r"a Kaldi data directory has wav\.scp, segments, utt2spk and reco2dur"):
        make_task("sd", tmp_path)
