"""All tasks at once, files for the leaderboard, sweeps with one pass of feature extraction, and features on disk."""

import csv
import itertools
import json
import resource
import shutil
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import superb_corpora as corpora
import torch
from processes import Command, start_ranks

from sjepa import distributed
from sjepa.cli import dispatch
from sjepa.errors import UserError
from sjepa.evaluate.superb.feature_files import FeatureFiles
from sjepa.evaluate.superb.features import FeatureStore
from sjepa.evaluate.superb.protocol import LearningRateSearch
from sjepa.evaluate.superb.records import Utterance
from sjepa.evaluate.superb.sound import Sound
from sjepa.evaluate.superb.submission import pack
from sjepa.evaluate.superb.task import Recipe
from sjepa.evaluate.superb.tasks import all_entries, find_entry, make_task
from sjepa.evaluate.upstream import Upstream, load_upstream


def noises(folder: Path, number: int) -> list[Utterance]:
    folder.mkdir(exist_ok=True)
    generator = np.random.default_rng(0)
    for index in range(number):
        soundfile.write(folder / f"{index}.wav", 0.1 * generator.standard_normal(4000 + 320 * index), 16_000)
    return [Utterance(str(index), folder / f"{index}.wav", ("x",)) for index in range(number)]


def counting(upstream: Upstream) -> tuple[Upstream, Counter[int]]:
    """An encoder that counts the utterances of each length that it was given."""
    seen: Counter[int] = Counter()

    def run(utterances: Any) -> list[torch.Tensor]:
        seen.update(len(samples) for samples in utterances)
        return upstream.run(utterances)

    return replace(upstream, run=run), seen


def features(store: FeatureStore, utterances: list[Utterance]) -> list[torch.Tensor]:
    return [states for _, each in store.batches([([u], -1) for u in utterances]) for states in each]


def test_features_that_do_not_fit_in_memory_are_read_from_disk(tmp_path: Path) -> None:
    made = noises(tmp_path / "audio", 4)
    upstream, seen = counting(load_upstream("logmel"))
    expected = features(FeatureStore(load_upstream("logmel")), made)
    for _ in range(2):  # the second store finds the files of the first
        store = FeatureStore(upstream, 0.0, FeatureFiles(tmp_path / "cache", 2**20, upstream))
        for _ in range(2):
            assert all(a.equal(b) for a, b in zip(features(store, made), expected, strict=True))
        assert not store.cache
    assert set(seen.values()) == {1}
    shutil.rmtree(tmp_path / "cache")
    again = FeatureStore(upstream, 0.0, FeatureFiles(tmp_path / "cache", 2**20, upstream))
    assert features(again, made)[0].equal(expected[0])
    assert set(seen.values()) == {2}


def test_the_features_on_disk_may_be_deleted_during_a_run(tmp_path: Path) -> None:
    made = noises(tmp_path / "audio", 4)
    upstream = load_upstream("logmel")
    store = FeatureStore(upstream, 0.0, FeatureFiles(tmp_path / "cache", 2**20, upstream))
    before = features(store, made)
    shutil.rmtree(tmp_path / "cache")
    assert all(a.equal(b) for a, b in zip(features(store, made), before, strict=True))
    assert len(list((tmp_path / "cache").rglob("*.npy"))) == 4


def test_a_function_has_no_features_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code may change between two runs, and the features of the old code would be used."""
    (tmp_path / "coded.py").write_text("def make():\n    return lambda x: x.unfold(1, 400, 320)\n")
    monkeypatch.chdir(tmp_path)
    coded = load_upstream("coded:make")
    with pytest.raises(UserError, match="--feature-cache: a change of the code of coded-make would not be"):
        FeatureFiles(tmp_path / "cache", 2**20, coded)
    assert not (tmp_path / "cache").exists()


def test_features_on_disk_are_those_of_the_same_settings(finished_run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(finished_run / "encoder", tmp_path / "encoder")
    (other / "preprocessor_config.json").write_text('{"do_normalize": true}')
    made, found = noises(tmp_path / "audio", 1), []
    for source in (finished_run / "encoder", other):
        upstream = replace(load_upstream(str(source)), name="same")
        assert upstream.fingerprint == load_upstream(str(other)).fingerprint
        found += features(FeatureStore(upstream, 0.0, FeatureFiles(tmp_path / "cache", 2**20, upstream)), made)
    assert not found[0].equal(found[1])


def test_features_on_disk_are_bounded(tmp_path: Path) -> None:
    made = noises(tmp_path / "audio", 6)
    upstream = load_upstream("logmel")
    most = 3 * 4 * features(FeatureStore(upstream), made[5:])[0].numel()
    store = FeatureStore(upstream, 0.0, FeatureFiles(tmp_path / "cache", most, upstream))
    features(store, made)
    kept = list((tmp_path / "cache").rglob("*.npy"))
    assert 0 < len(kept) < 6
    assert sum(file.stat().st_size for file in kept) <= most + 200 * len(kept)  # with their headers
    full = FeatureFiles(tmp_path / "cache", most, upstream)
    assert full.room < most / 3


def fill_cache(arguments: list[str]) -> None:
    """Compute features while the kernel refuses to write longer files than the second, as a full disk would."""
    folder = Path(arguments[0])
    upstream = load_upstream("logmel")
    store = FeatureStore(upstream, 0.0, FeatureFiles(folder / "cache", 2**20, upstream))
    made = noises(folder / "audio", 4)
    size = 4 * features(FeatureStore(upstream), made[1:2])[0].numel()
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 200, size + 200))  # with a header
    expected = features(FeatureStore(upstream), made)
    for _ in range(2):
        assert all(a.equal(b) for a, b in zip(features(store, made), expected, strict=True))


def test_a_full_disk_for_features_is_reported_once_and_does_not_end_the_evaluation(tmp_path: Path) -> None:
    command = Command([str(tmp_path)], tmp_path / "output.txt", main=fill_cache)
    assert command.wait() == 0, command.text
    assert command.text.count("File too large; no more features are saved there") == 1
    left = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert [path.suffix for path in left] == [".npy", ".npy"]  # and nothing unfinished


def test_features_of_changed_audio_are_computed_again(tmp_path: Path) -> None:
    made = noises(tmp_path / "audio", 1)
    upstream = load_upstream("logmel")
    before = features(FeatureStore(upstream, 0.0, FeatureFiles(tmp_path / "cache", 2**20, upstream)), made)[0]
    soundfile.write(made[0].path, np.full(4001, 0.3), 16_000)
    after = features(FeatureStore(upstream, 0.0, FeatureFiles(tmp_path / "cache", 2**20, upstream)), made)[0]
    assert not torch.equal(before, after)
    lowered = replace(made[0], sound=Sound.LOWERED)
    quiet = features(FeatureStore(upstream, 0.0, FeatureFiles(tmp_path / "cache", 2**20, upstream)), [lowered])[0]
    assert not torch.equal(quiet, after)


def test_half_precision_features_survive_the_disk(tmp_path: Path) -> None:
    made = noises(tmp_path / "audio", 1)
    plain = load_upstream("logmel")
    half = replace(
        plain,
        precision="bf16",
        network=torch.nn.Linear(1, 1),
        run=lambda audio: [states.bfloat16() for states in plain.run(audio)],
    )
    files = FeatureFiles(tmp_path / "cache", 2**20, half)
    first = features(FeatureStore(half, 0.0, files), made)[0]
    second = features(FeatureStore(half, 0.0, files), made)[0]
    assert second.dtype is torch.bfloat16
    assert torch.equal(first, second)


def test_a_part_of_a_file_has_features_of_its_own(tmp_path: Path) -> None:
    (whole,) = noises(tmp_path / "audio", 1)
    part = replace(whole, start=640, samples=1280)
    store = FeatureStore(load_upstream("logmel"))
    long, short = features(store, [whole, part])
    assert (long.shape[1], short.shape[1]) == (12, 3)
    assert len(store.cache) == 2
    samples = soundfile.read(whole.path, dtype="float32")[0][640:1920]
    assert short.equal(load_upstream("logmel").extract([samples])[0])


@pytest.fixture(scope="module")
def voxceleb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("espeakng_loader")
    return corpora.voxceleb(tmp_path_factory.mktemp("sweep"), speakers=3)


def test_a_sweep_extracts_once_and_trains_as_single_rates_do(voxceleb: Path, tmp_path: Path) -> None:
    task = replace(make_task("sid", voxceleb), recipe=Recipe(6, 1e-3, 4, 1, 3))
    rates = [1e-2, 1e-3, 1e-4]
    upstream, seen = counting(load_upstream("logmel"))
    swept = LearningRateSearch(task, upstream, tmp_path / "swept", cache_gb=0.0)
    results = swept.run(rates)
    extracted = sum(seen.values())
    seen.clear()
    alone = {
        rate: LearningRateSearch(task, upstream, tmp_path / f"{rate:g}", cache_gb=0.0).run([rate]) for rate in rates
    }
    assert 3 * extracted == sum(seen.values())
    dev = {rate: alone[rate]["dev"]["by_learning_rate"][f"{rate:g}"] for rate in rates}
    assert results["dev"]["by_learning_rate"] == {f"{rate:g}": score for rate, score in dev.items()}
    chosen = alone[results["learning_rate"]]
    assert (results["folds"], results["metrics"]) == (chosen["folds"], chosen["metrics"])


def test_a_sweep_continues_from_heads_that_are_further(voxceleb: Path, tmp_path: Path) -> None:
    """Heads of a stopped sweep, or of an earlier run at one of its rates, wait until the others have come as far."""
    task = replace(make_task("sid", voxceleb), recipe=Recipe(6, 1e-3, 4, 1, 3))
    unbroken = LearningRateSearch(task, load_upstream("logmel"), tmp_path / "unbroken").run([1e-2, 1e-3])
    short = LearningRateSearch(task, load_upstream("logmel"), tmp_path / "broken")
    short.out.mkdir()
    short.measure()
    short.identity = short.describe()
    (ahead,) = short.train(task.folds[0], 0, [1e-2])
    assert ahead.state.step == 6
    results = LearningRateSearch(task, load_upstream("logmel"), tmp_path / "broken").run([1e-2, 1e-3])
    assert (results["dev"], results["folds"]) == (unbroken["dev"], unbroken["folds"])


def test_all_runs_the_tasks_that_it_finds_and_prints_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("espeakng_loader")
    data = tmp_path / "corpora"
    corpora.quesst(data)
    corpora.voxceleb(data / "VoxCeleb1", speakers=2)
    (data / "LibriSpeech").mkdir()  # without utterances
    command = ["superb", "all", "--encoder", "mfcc", "--data", str(data), "--lite", "--out", str(tmp_path / "out")]
    with pytest.raises(UserError, match="2 of 4 tasks were not run: asr, pr"):
        dispatch([*command, "--steps", "2"])
    output = capsys.readouterr().out
    assert "tasks: asr, pr, qbe, sid; no corpus of asv, er, ic, ks, sd, sf" in output
    assert "asr was not run: " in output
    assert "## Lite protocols" in output
    assert "qbe-lite" in output.split("## Lite")[1]
    assert "sid-lite" in output.split("## Lite")[1]
    assert json.loads((tmp_path / "out" / "sid-lite" / "results.json").read_text())["protocol"]["steps"] == 2
    assert not (tmp_path / "out" / "predict.zip").exists()  # lite results are not for the board
    with pytest.raises(UserError, match="has no corpus of SUPERB"):
        dispatch(["superb", "all", "--encoder", "mfcc", "--data", str(tmp_path / "out"), "--lite"])
    with pytest.raises(UserError, match="there is no folder nowhere"):
        dispatch(["superb", "all", "--encoder", "mfcc", "--data", "nowhere"])
    with pytest.raises(UserError, match="--feature-cache-gb 0: it should be greater than 0"):
        dispatch([*command, "--feature-cache-gb", "0"])


def test_full_results_go_into_an_archive_for_the_board(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("espeakng_loader")
    data = tmp_path / "corpora"
    corpora.quesst(data)
    command = ["superb", "all", "--encoder", "mfcc", "--data", str(data), "--out", str(tmp_path / "out")]
    dispatch(command)
    assert "predict.zip (qbe_public)" in capsys.readouterr().out
    with zipfile.ZipFile(tmp_path / "out" / "predict.zip") as archive:
        assert archive.namelist() == ["predict/qbe_public/benchmark.stdlist.xml"]
    (tmp_path / "out" / "predict.zip").write_text("the archive of the full protocols")
    dispatch([*command, "--hours", "1"])  # for tasks that train
    assert (tmp_path / "out" / "predict.zip").read_text() == "the archive of the full protocols"


def test_every_task_of_superb_has_its_place_on_the_board() -> None:
    """The folders and files of `predict.zip` as s3prl's `submit.py` makes them."""
    places = {
        entry.name: entry.submission.places for entry in all_entries() if entry.submission and entry.corpus is not None
    }
    assert places == {
        "pr": {"test-hyp.ark": "pr_public/predict.ark"},
        "asr": {
            "test-clean-noLM-hyp.ark": "asr_public/predict.ark",
            "test-clean-LM-hyp.ark": "asr_lm_public/predict.ark",
        },
        "ks": {"test_predict.txt": "ks_public/predict.txt"},
        "qbe": {"benchmark.stdlist.xml": "qbe_public/benchmark.stdlist.xml"},
        "sid": {"test_predict.txt": "sid_public/predict.txt"},
        "asv": {"test_predict.txt": "sv_public/predict.txt"},
        "sd": {"scoring/predictions": "sd_public"},
        "ic": {"test_predict.csv": "ic_public/predict.csv"},
        "sf": {"test-hyp.ark": "sf_public/predict.ark"},
        "er": {f"test_fold{n}_predict.txt": f"er_fold{n}_public/predict.txt" for n in range(1, 6)},
    }


@pytest.mark.parametrize(
    ("task", "path", "prediction", "line"),
    [
        ("pr", "84/121123/84-121123-0000.flac", "AH0 B IY1", "84-121123-0000 AH0 B IY1"),
        ("asr", "84/121123/84-121123-0000.flac", "GO ON ", "84-121123-0000 GO ON"),
        ("ks", "test/yes/a_nohash_0.wav", ("yes",), "yes-a_nohash_0.wav yes"),
        ("sid", "wav/id10003/video/00001.wav", ("id10007",), "id10003-video-00001 id10007"),
        ("ic", "speakers/x/0a-1.wav", ("increase", "heat", "none"), "0a-1,increase,heat,none"),
        (
            "sf",
            "test/Brian-snips-test-1.wav",
            "PLAY B-artist SADE E-artist",
            "Brian-snips-test-1 PLAY B-artist SADE E-artist",
        ),
        ("er", "wav/Ses01F_impro01_F000.wav", ("happy",), "Ses01F_impro01_F000 hap"),
    ],
)
def test_lines_are_those_that_s3prl_writes(task: str, path: str, prediction: Any, line: str) -> None:
    submission = find_entry(task).submission
    assert submission is not None
    utterance = Utterance("name", Path("/corpus") / path, prediction)
    files = submission.files([utterance, utterance], [prediction, prediction], 0)
    assert list(files.items()) == [(next(iter(submission.places)), f"{line}\n{line}\n")]
    if submission.decoded:
        assert submission.decoded_files([utterance], [prediction]) == {submission.decoded: f"{line}\n"}


def test_folds_and_folders_are_packed(tmp_path: Path) -> None:
    for fold in range(1, 6):
        (tmp_path / f"test_fold{fold}_predict.txt").write_text(f"{fold}\n")
    (tmp_path / "scoring" / "predictions").mkdir(parents=True)
    (tmp_path / "scoring" / "predictions" / "mix.h5").write_bytes(b"x")
    tasks = [(find_entry(name).submission, tmp_path) for name in ("er", "sd", "ks")]
    known = [(submission, folder) for submission, folder in tasks if submission is not None]
    names = pack(known, tmp_path / "predict.zip")
    assert names == [*(f"er_fold{fold}_public" for fold in range(1, 6)), "sd_public"]
    with zipfile.ZipFile(tmp_path / "predict.zip") as archive:
        assert archive.namelist() == [
            *(f"predict/er_fold{fold}_public/predict.txt" for fold in range(1, 6)),
            "predict/sd_public/mix.h5",
        ]
        assert archive.read("predict/er_fold3_public/predict.txt") == b"3\n"
    assert pack([], tmp_path / "none.zip") == []
    assert not (tmp_path / "none.zip").exists()
    assert list(itertools.islice(tmp_path.glob("*.partial"), 1)) == []


def train_heads(arguments: list[str]) -> None:
    """Train heads of speaker identification on a corpus, on one of several ranks."""
    corpus, out = map(Path, arguments)
    distributed.setup("cpu")
    task = replace(make_task("sid", corpus), recipe=Recipe(6, 1e-2, 3, 2, 3))
    LearningRateSearch(task, load_upstream("logmel"), out).run([1e-2, 1e-3])
    distributed.shutdown()


def test_ranks_share_a_task(voxceleb: Path, tmp_path: Path) -> None:
    """Two processes compute what one computes; a batch of three has a share of two and a share of one."""
    for name, world_size in (("one", 1), ("two", 2)):
        call = [str(voxceleb), str(tmp_path / name)]
        ranks = start_ranks(call, tmp_path / f"{name}.txt", world_size, main=train_heads)
        assert [rank.wait() for rank in ranks] == [0] * world_size, ranks[0].text
    one, two = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("one", "two"))
    for key in ("metrics", "dev", "learning_rate"):
        assert one[key] == two[key]
    curves = [[look["loss"] for look in each["folds"][0]["dev_curve"]] for each in (one, two)]
    assert curves[0] == pytest.approx(curves[1], abs=2e-4)
    assert (tmp_path / "one" / "predictions.txt").read_text() == (tmp_path / "two" / "predictions.txt").read_text()


@pytest.mark.parametrize("part", ["train", "valid"])
def test_a_file_that_one_rank_cannot_use_ends_the_task_on_all_ranks(tmp_path: Path, part: str) -> None:
    """Only one rank reads the file. If it went on to the next task alone, the ranks would wait for each other."""
    pytest.importorskip("espeakng_loader")
    data = tmp_path / "corpora"
    corpora.fluent_commands(data)
    corpora.voxceleb(data / "VoxCeleb1", speakers=2)
    listed = next(data.rglob(f"{part}_data.csv"))
    with listed.open(newline="") as file:
        damaged = listed.parents[1] / next(csv.DictReader(file))["path"]
    soundfile.write(damaged, np.full(100, 0.1), 16_000)  # shorter than a frame, with a valid header
    call = ["superb", "all", "--encoder", "mfcc", "--data", str(data), "--out", str(tmp_path / "out")]
    ranks = start_ranks([*call, "--device", "cpu", "--lite", "--steps", "3"], tmp_path / "output.txt", 2)
    assert [rank.wait(60) for rank in ranks] == [2, 2], ranks[1].text
    assert f"ic was not run: {damaged}: 100 samples at 16 kHz" in ranks[0].text
    assert "1 of 2 tasks were not run: ic" in ranks[0].text
    assert (tmp_path / "out" / "sid-lite" / "results.json").is_file()
