"""Probes, units and ABX: correct on known cases, and equal to the paper's protocol."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import superb_corpora
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import mutual_info_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sjepa.analysis.speech import find_utterances
from sjepa.cli import dispatch
from sjepa.data.synthetic import VOICES, synthesise_corpus
from sjepa.errors import UserError
from sjepa.evaluate.abx import abx_errors, phone_tokens
from sjepa.evaluate.agreement import measure_agreement
from sjepa.evaluate.alignments import frame_labels
from sjepa.evaluate.corpus_hash import hash_corpus
from sjepa.evaluate.labelled import LabelledUtterance, corpus_name, read_labelled
from sjepa.evaluate.logistic import fit_logistic
from sjepa.evaluate.probe_names import ProbeName, state_name
from sjepa.evaluate.probes import (
    chance_accuracy,
    choose_utterances,
    linear_probe,
    mlp_probe,
    phone_probe,
    standardize,
    utterance_probe,
)
from sjepa.evaluate.probing import choose_properties, probe_encoder, select_states
from sjepa.evaluate.superb.librispeech import read_aligned_phones
from sjepa.evaluate.superb.records import Utterance
from sjepa.evaluate.table import build_sections
from sjepa.evaluate.units import KMEANS_PASSES, kmeans_units
from sjepa.evaluate.upstream import load_upstream
from sjepa.targets.kmeans import kmeans


def test_a_linear_probe_reads_a_half_space_and_an_mlp_reads_a_ring() -> None:
    x = np.random.default_rng(0).normal(size=(3000, 2)).astype(np.float32)
    half, ring = (x[:, 0] > 0).astype(str), (np.hypot(*x.T) > 1.18).astype(str)
    train, test = torch.from_numpy(x).split([2400, 600])
    assert linear_probe(train, half[:2400], test, half[2400:]) > 0.97
    assert linear_probe(train, ring[:2400], test, ring[2400:]) < 0.65
    assert 0.9 < mlp_probe(train, ring[:2400], test, ring[2400:]) <= 1


def test_a_linear_probe_is_scikit_learns_on_standardised_features() -> None:
    """Dimensions of very different sizes, one of them constant; most of the signal is in the smallest."""
    generator = np.random.default_rng(1)
    labels = generator.choice(["a", "b", "c"], 500)
    x = generator.normal(size=(500, 6)) + 0.7 * np.eye(3, 6)[np.searchsorted(["a", "b", "c"], labels)]
    x = x * [1e-3, 0.1, 1.0, 10.0, 1e3, 0.0] + 5.0
    reference = make_pipeline(StandardScaler(), LogisticRegression(C=1.0, max_iter=2000)).fit(x[:300], labels[:300])
    train, test = torch.from_numpy(x).split([300, 200])
    for ours, theirs in zip(standardize(train, test), (x[:300], x[300:]), strict=True):
        np.testing.assert_allclose(ours.numpy(), reference[0].transform(theirs), atol=1e-8)
    assert linear_probe(train, labels[:300], test, labels[300:]) == reference.score(x[300:], labels[300:])


def test_an_mlp_gives_equal_frames_the_same_label() -> None:
    """Frames on the boundary of two classes: dropout at test time would give them both labels."""
    x = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    labels = (x[:, 0] > 0).numpy().astype(str)
    assert mlp_probe(x, labels, torch.zeros(300, 2), np.full(300, "True")) in (0.0, 1.0)


def test_probes_repeat_themselves_and_give_mean_and_deviation() -> None:
    generator = np.random.default_rng(0)
    labels = generator.choice(["a", "b", "c"], 100)
    means = np.eye(3)[np.searchsorted(["a", "b", "c"], labels)] + generator.normal(0, 0.6, (100, 3))
    first, again = (utterance_probe(torch.from_numpy(means), labels.tolist(), splits=4) for _ in range(2))
    assert first == again
    assert len(first.splits) == 4
    assert first.mean == pytest.approx(np.mean(first.splits))
    assert first.deviation == pytest.approx(np.std(first.splits))
    assert first.mean > chance_accuracy(labels) + 0.2


def test_every_split_and_seed_holds_out_another_fifth() -> None:
    def probe(train: torch.Tensor, train_labels: np.ndarray, test: torch.Tensor, test_labels: np.ndarray) -> float:
        held = sorted(test[:, 0].tolist())
        assert sorted([*held, *train[:, 0].tolist()]) == list(range(30))
        assert [labels[int(row)] for row in test[:, 0]] == test_labels.tolist()
        assert [labels[int(row)] for row in train[:, 0]] == train_labels.tolist()
        parts.append(tuple(held))
        return 0.0

    x, labels, parts = torch.arange(30.0)[:, None], list("abc" * 10), list[tuple[float, ...]]()
    for seed in range(3):
        utterance_probe(x, labels, probe=probe, splits=4, seed=seed)
        phone_probe(x, np.array(labels), np.array(labels), probe=probe, by_speaker=False, splits=4, seed=seed + 3)
    assert {len(part) for part in parts} == {6}
    assert len(set(parts)) == len(parts) == 24


def test_random_frames_leak_what_held_out_speakers_do_not() -> None:
    """Frames of an utterance are near copies, and their labels are noise: only a leak can predict them."""
    generator = np.random.default_rng(0)
    features = torch.from_numpy(generator.normal(size=(40, 1, 20)) + 0.01 * generator.normal(size=(40, 30, 20)))
    features = features.flatten(0, 1)
    labels = np.repeat(generator.choice(["p", "q"], 40), 30)
    speakers = np.repeat([f"s{number // 4}" for number in range(40)], 30)
    leaking = phone_probe(features, labels, speakers, by_speaker=False, splits=2)
    honest = phone_probe(features, labels, speakers, by_speaker=True, splits=2)
    assert leaking.mean > 0.75
    assert honest.mean < 0.65
    unnamed = np.where(np.arange(1200) % 3 == 0, "", speakers)  # a third of each speaker's frames
    assert phone_probe(features, labels, unnamed, by_speaker=True, splits=2).mean < 0.65
    with pytest.raises(UserError, match=r"needs at least two speakers; .* frames have 1 "):
        phone_probe(features, labels, np.full(1200, "s0"))
    with pytest.raises(UserError, match="at least two classes; all 3 utterances are 'x'"):
        utterance_probe(torch.zeros(3, 2), ["x"] * 3)


@pytest.mark.parametrize(("names", "splits"), [(2, 2), (3, 3), (40, 3)])
def test_no_speaker_is_held_out_twice(names: int, splits: int) -> None:
    tested: list[str] = []

    def probe(train: torch.Tensor, train_labels: np.ndarray, test: torch.Tensor, test_labels: np.ndarray) -> float:
        assert not set(train_labels) & set(test_labels)
        tested.extend(test_labels)
        return len(test_labels) / names

    speakers = np.array([f"s{number}" for number in range(names)])
    found = phone_probe(torch.zeros(names, 1), speakers, speakers, probe=probe, splits=3)
    assert len(tested) == len(set(tested)) == splits * max(1, names // 5)
    assert len(found.splits) == splits


def test_one_class_in_the_training_part_is_the_answer_to_everything() -> None:
    labels = np.array(["f", "m", "m", "m"])
    assert linear_probe(torch.zeros(3, 2), labels[1:], torch.zeros(4, 2), labels) == 0.75


def test_whole_utterances_are_chosen_until_there_are_enough_frames() -> None:
    frames = [10, 20, 30, 40]
    chosen = choose_utterances(frames, 35, seed=0)
    assert sum(frames[i] for i in chosen) >= 35
    assert choose_utterances(frames, 0, seed=0) == [0, 1, 2, 3]
    assert choose_utterances(frames, 1000, seed=0) == [0, 1, 2, 3]


def test_frame_labels_are_those_at_the_frames_centre() -> None:
    """Frame t is centred at 320 t + 200 samples: 12.5 ms, 32.5 ms, ... and label 2 t + 1 of 100 per second."""
    assert frame_labels([(0.0, 0.02, "a"), (0.02, 0.05, "b"), (0.05, 0.1, "c")], 4) == ["a", "b", "c", "c"]
    # Shortly after the last segment, its label continues. Later frames are silence.
    assert frame_labels([(0.0, 0.02, "a"), (0.02, 0.03, "b")], 6) == ["a", "b", "b", "b", "SIL", "SIL"]
    assert frame_labels([(0, 1, "a")], 60) == 52 * ["a"] + 8 * ["SIL"]  # whole seconds
    hundred = LabelledUtterance(Utterance("x", Path("x.wav"), ""), phones=list("aabbcdde"))
    assert hundred.frame_phones(4).tolist() == ["a", "b", "d", "e"]
    with pytest.raises(UserError, match=r"x has 8 phone labels; its 0\.40 s of audio need 40, 100 per second"):
        hundred.frame_phones(20)
    with pytest.raises(UserError, match="x has no phone labels"):
        LabelledUtterance(Utterance("x", Path("x.wav"), "")).frame_phones(4)


def test_a_broken_line_of_labels_is_named(tmp_path: Path) -> None:
    (tmp_path / "labels.jsonl").write_text('{"id"\n')
    with pytest.raises(UserError, match=r"labels\.jsonl line 1: not valid JSON"):
        read_labelled(tmp_path)


def test_a_line_of_labels_may_be_a_stretch_of_a_recording(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, 32_000).astype(np.float32)
    soundfile.write(tmp_path / "a.wav", samples, 16_000, subtype="FLOAT")
    rows = [{"path": "a.wav", "offset": offset, "duration": 0.5} for offset in (0, 1.25)]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = (item.utterance for item in read_labelled(tmp_path, phones=False))
    assert (first.name, second.name) == ("a", "a@1.25")
    assert np.array_equal(first.read(), samples[:8_000])
    assert np.array_equal(second.read(), samples[20_000:28_000])
    (tmp_path / "labels.jsonl").write_text(json.dumps(rows[0] | {"duration": -1}) + "\n")
    with pytest.raises(UserError, match=r"labels\.jsonl line 1: offset 0\.0 s, duration -1\.0 s: the offset must not"):
        read_labelled(tmp_path, phones=False)


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("espeakng_loader")
    return synthesise_corpus(tmp_path_factory.mktemp("spoken") / "c", voices=4, sentences_per_voice=6)


def test_the_whole_protocol_beats_chance_on_synthetic_speech(spoken: Path) -> None:
    corpus = read_labelled(spoken)
    results = probe_encoder(load_upstream("mfcc"), corpus, frames=2500)
    (scores,) = results["layers"].values()
    assert set(scores) == {
        "speaker",
        "gender",
        *(f"phoneme {kind}, {split}" for kind in ("linear", "mlp") for split in ("random frames", "held-out speakers")),
    }
    assert len(scores["speaker"]["splits"]) == 10
    assert len(scores["phoneme mlp, random frames"]["splits"]) == 3
    assert scores["speaker"]["mean"] > results["chance"]["speaker"] + 30
    for name in ("phoneme linear, random frames", "phoneme linear, held-out speakers"):
        assert scores[name]["mean"] > results["chance"]["phoneme"] + 10
    assert results["data"]["phone_frames"] >= 2500
    assert results["audio_seconds_per_second"] > 0


def test_layers_are_named_by_their_number() -> None:
    mfcc = load_upstream("mfcc")
    assert (select_states(mfcc, "last"), state_name(0, mfcc.states)) == ([0], "features")
    with pytest.raises(UserError, match="--layer 3: mfcc has one layer of features; omit --layer"):
        select_states(mfcc, "3")


def test_agreement_of_units_and_phones_by_definition() -> None:
    generator = np.random.default_rng(0)
    phones = generator.choice(list("abcd"), 5000, p=[0.4, 0.3, 0.2, 0.1])
    units = np.where(
        generator.random(5000) < 0.7, np.searchsorted(list("abcd"), phones), generator.integers(0, 6, 5000)
    )
    found = measure_agreement(units, phones)
    pairs = list(zip(units, phones, strict=True))
    purity = sum(max(sum(p == (u, q) for p in pairs) for q in "abcd") for u in range(6)) / 5000
    shares = np.bincount(units) / 5000
    assert found["phone_purity"] == pytest.approx(purity)
    purity = sum(max(sum(p == (u, q) for p in pairs) for u in range(6)) for q in "abcd") / 5000
    assert found["cluster_purity"] == pytest.approx(purity)
    assert found["units_used"] == 6
    entropy = mutual_info_score(phones, phones)
    assert found["pnmi"] == pytest.approx(mutual_info_score(phones, units) / entropy)
    assert found["perplexity"] == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))
    assert measure_agreement(np.searchsorted(list("abcd"), phones), phones)["pnmi"] == pytest.approx(1.0)
    assert measure_agreement(np.zeros(5000, int), phones)["pnmi"] == pytest.approx(0.0, abs=1e-9)
    assert measure_agreement(np.zeros(5000, int), phones)["perplexity"] == pytest.approx(1.0)


def test_kmeans_units_follow_clear_clusters() -> None:
    generator = np.random.default_rng(0)
    centres = 20 * np.eye(4, 8)
    truth = [generator.integers(0, 4, 50) for _ in range(10)]
    features = [centres[t] + generator.normal(size=(50, 8)) for t in truth]
    units = kmeans_units(features, 8, 0, torch.device("cpu"))
    halves = kmeans_units(features[:5], 8, 0, torch.device("cpu"), codebook_features=features[5:])
    assert measure_agreement(halves, np.concatenate(truth[:5]).astype(str))["pnmi"] > 0.8
    two = kmeans_units(features, 2, 0, torch.device("cpu"), codebook_features=[centres[[0]], centres[[1]]])
    assert (two == two[np.concatenate(truth) == 0][0])[np.concatenate(truth) == 0].all()
    assert not (two == two[np.concatenate(truth) == 0][0])[np.concatenate(truth) == 1].any()
    assert measure_agreement(units, np.concatenate(truth).astype(str))["pnmi"] > 0.8
    for clusters in (0, 501):
        with pytest.raises(UserError, match=f"--clusters {clusters}: must be between 1 and the 500 frames"):
            kmeans_units(features, clusters, 0, torch.device("cpu"))


def test_a_unit_is_the_nearest_centre_also_far_from_zero() -> None:
    generator = np.random.default_rng(0)
    features, codebook = ([30 + generator.normal(size=(200, 6))] for _ in range(2))
    units = kmeans_units(features, 12, 3, torch.device("cpu"), codebook_features=codebook)
    fitted_on = torch.from_numpy(codebook[0]).float()
    centres = kmeans(fitted_on, 12, KMEANS_PASSES, torch.Generator().manual_seed(3)).double()
    assert units.tolist() == torch.cdist(torch.from_numpy(features[0]), centres).argmin(1).tolist()


def test_abx_tokens_are_runs_of_one_phone() -> None:
    tokens = [("0.02", "0.06", "A", "SIL", "B"), ("0.06", "0.08", "B", "A", "SIL")]
    assert list(phone_tokens(np.array(["SIL", "A", "A", "B", "SIL"]))) == tokens


def test_abx_is_low_for_phones_apart_and_half_for_noise() -> None:
    """Against fastabx where it is installed; otherwise the refusal is one clear line."""
    generator = np.random.default_rng(0)
    phones = [np.repeat(generator.permutation(list("ABC")), 4) for _ in range(24)]
    speakers = [f"s{number % 3}" for number in range(24)]
    places = {"A": 0, "B": 1, "C": 2}
    apart = [np.eye(3)[[places[p] for p in row]] + 0.05 * generator.normal(size=(12, 3)) for row in phones]
    noise = [generator.normal(size=(12, 3)) for _ in phones]
    try:
        import fastabx  # noqa: F401
    except ImportError:
        with pytest.raises(UserError, match=r"ABX needs fastabx, which needs Python 3\.12"):
            abx_errors(apart, phones, speakers)
        return
    assert max(abx_errors(apart, phones, speakers).values()) < 1
    assert min(abx_errors(noise, phones, speakers).values()) > 30


@pytest.mark.parametrize("classes", [2, 5])
def test_our_logistic_regression_is_scikit_learns(classes: int) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(classes, size=600)
    x = rng.normal(size=(600, 12)) + rng.normal(size=(classes, 12))[y]
    names = np.array([f"class {i}" for i in range(classes)])[y]
    reference = LogisticRegression(C=1.0, max_iter=2000, tol=1e-8).fit(x, names)
    ours = fit_logistic(torch.from_numpy(x), names, tolerance=1e-8)
    np.testing.assert_allclose(ours.weights[:-1].numpy().T, reference.coef_, atol=1e-4)
    np.testing.assert_allclose(np.diff(ours.weights[-1].numpy()), np.diff(reference.intercept_), atol=1e-4)
    assert (ours.predict(torch.from_numpy(x)) == reference.predict(x)).all()


def listed(folder: Path, keep: tuple[str, ...], source: Path) -> Path:
    """The same audio with fewer labels, as the cookbook lists them."""
    return change_labels(folder, lambda _, row: {key: row[key] for key in keep}, source)


def change_labels(folder: Path, change: Callable[[int, dict[str, Any]], dict[str, Any]], source: Path) -> Path:
    """The same corpus with other rows in labels.jsonl."""
    shutil.copytree(source, folder)
    rows = [json.loads(line) for line in (source / "labels.jsonl").read_text().splitlines()]
    lines = [json.dumps(change(number, row)) + "\n" for number, row in enumerate(rows)]
    (folder / "labels.jsonl").write_text("".join(lines))
    return folder


def test_utterances_without_phones_are_left_out_of_what_needs_phones(
    spoken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = change_labels(tmp_path / "c", lambda number, row: row if number % 6 else row | {"phones": []}, spoken)
    some, every = read_labelled(data), read_labelled(spoken)
    assert "4 of 24 utterances have no phones and are left out" in capsys.readouterr().out
    assert [item.utterance.name for item in some] == [x.utterance.name for i, x in enumerate(every) if i % 6]
    corpus = read_labelled(data, phones=False)
    results = probe_encoder(load_upstream("mfcc"), corpus, frames=500)
    assert "4 of 24 utterances have no phones: phone probes skip them" in capsys.readouterr().out
    assert results["data"]["utterances"] == 24  # the speakers of all utterances are probed
    alone = probe_encoder(load_upstream("mfcc"), some, frames=500)
    assert results["data"]["phone_utterances"] == alone["data"]["phone_utterances"]
    name = "phoneme linear, random frames"
    assert results["layers"]["features"][name] == alone["layers"]["features"][name]
    command = ["units", "--encoder", "mfcc", "--units", "kmeans", "--clusters", "9", "--frames", "0"]
    dispatch([*command, "--data", str(data), "--out", str(tmp_path / "units")])
    assert json.loads((tmp_path / "units" / "results.json").read_text())["data"]["utterances"] == 20


@pytest.mark.parametrize("speaker", ["", "ann"])
def test_phones_of_fewer_than_two_speakers_are_probed_on_random_frames_only(
    speaker: str, spoken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = change_labels(tmp_path / "c", lambda _, row: row | {"speaker": speaker, "gender": ""}, spoken)
    command = ["probe", "--encoder", "mfcc", "--data", str(data), "--frames", "500", "--out", str(tmp_path / "out")]
    dispatch(command)
    assert "skipping the phone probes with held-out speakers" in capsys.readouterr().out
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    (scores,) = results["layers"].values()
    assert set(scores) == {"phoneme linear, random frames", "phoneme mlp, random frames"}
    several = probe_encoder(load_upstream("mfcc"), read_labelled(spoken), frames=500)["layers"]["features"]
    assert all(score == several[name] for name, score in scores.items())
    assert [section.columns for section in build_sections([results])] == [list(scores)]


def test_a_list_needs_no_more_than_a_path_a_text_and_a_speaker(
    spoken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = listed(tmp_path / "mine", ("path", "text", "speaker"), spoken)
    (data / "corpus.json").unlink()  # of the synthesiser
    corpus = read_labelled(data, phones=False)
    assert [item.speaker for item in corpus] == [item.speaker for item in read_labelled(spoken)]
    assert corpus[0].utterance.name == corpus[0].utterance.path.relative_to(data).with_suffix("").as_posix()
    assert corpus_name(data, "dev-clean") == "labelled speech (mine)"
    dispatch(["probe", "--encoder", "mfcc", "--data", str(data), "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert f"Skipping the phone probes: {data / 'labels.jsonl'} has no phones: a list of" in printed
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    (scores,) = results["layers"].values()
    assert set(scores) == {"speaker"}
    assert scores["speaker"]["chance"] == results["chance"]["speaker"] == 25.0
    assert results["data"] == {"utterances": len(corpus)}
    (section,) = build_sections([results])
    assert section.columns == ["speaker"]
    item, *_ = find_utterances(data, [], 2, "dev-clean")  # for the explorer of `report --data`
    assert item.speaker
    with pytest.raises(UserError, match=r"labels\.jsonl has no phones: a list of \[start, end, phone\]"):
        dispatch(["units", "--encoder", "mfcc", "--units", "kmeans", "--data", str(data)])
    with pytest.raises(UserError, match="nothing to probe"):
        probe_encoder(load_upstream("mfcc"), read_labelled(listed(tmp_path / "bare", ("path",), spoken), phones=False))
    (data / "labels.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(UserError, match=r"labels\.jsonl line 1: there is no path"):
        read_labelled(data)


def test_a_property_that_only_some_utterances_have_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    labels = [("a", ""), ("b", "f"), ("b", "")]
    found = choose_properties(
        [LabelledUtterance(Utterance("x", Path("x.wav"), "", speaker), gender) for speaker, gender in labels]
    )
    assert found == {ProbeName.SPEAKER: ["a", "b", "b"]}
    assert capsys.readouterr().out == "2 of 3 utterances have no gender: skipping its probe\n"


def test_a_corpus_without_labels_gets_the_list_of_accepted_layouts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"the folder {tmp_path} is empty"):
        read_labelled(tmp_path, phones=False)
    notes = tmp_path / "notes.txt"
    notes.touch()
    with pytest.raises(UserError, match=r"^\S+ has no folder dev-clean or \S+; give LibriSpeech, ") as refusal:
        read_labelled(notes.parent, phones=False)
    for layout in ("labels.jsonl", "an index", ".tsv", "Kaldi (wav.scp)", "lhotse", "Hugging Face", "metadata.csv"):
        assert layout in str(refusal.value)


def test_a_corpus_is_known_by_its_labels_and_its_audio(labelled: Path, tmp_path: Path) -> None:
    known = hash_corpus(read_labelled(labelled))
    copy = shutil.copytree(labelled, tmp_path / "copy")
    assert hash_corpus(read_labelled(copy)) == known
    audio, rate = soundfile.read(copy / "03.wav", dtype="int16")
    soundfile.write(copy / "03.wav", -audio, rate)
    assert hash_corpus(read_labelled(copy)) != known


def test_the_nearest_phone_labels_count(tmp_path: Path) -> None:
    libri = tmp_path / "corpora" / "LibriSpeech"
    libri.mkdir(parents=True)
    for folder, phone in ((tmp_path, "C"), (libri.parent, "B"), (libri, "A")):
        (folder / "phones-dev-clean.jsonl").write_text(json.dumps({"name": "u", "phones": [phone]}) + "\n")
    found = [read_aligned_phones(root)["u"] for root in (libri, libri.parent)]
    assert found == [["A"], ["B"]]
    (libri.parent / "phones-dev-clean.jsonl").unlink()
    assert read_aligned_phones(libri.parent)["u"] == ["A"]


def test_speakers_are_probed_where_librispeech_has_no_phones(tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader")
    root = superb_corpora.librispeech(tmp_path / "libri", {"test-other": 4}, VOICES[:3])
    assert read_labelled(root, "test-other")[0].phones
    (root / "phones-dev-clean.jsonl").unlink()
    with pytest.raises(UserError, match=rf"looked for phones-test-other\.jsonl and .*\.gz in {root} and {tmp_path}"):
        read_labelled(root, "test-other")
    corpus = read_labelled(root, "test-other", phones=False)
    (scores,) = probe_encoder(load_upstream("mfcc"), corpus)["layers"].values()
    assert set(scores) == {"speaker", "gender", "chapter"}
    (root / "LibriSpeech" / "SPEAKERS.TXT").unlink()
    for transcript in root.rglob("*.trans.txt"):  # speakers and chapters need no text either
        transcript.unlink()
    corpus = read_labelled(root, "test-other", phones=False)
    (scores,) = probe_encoder(load_upstream("mfcc"), corpus)["layers"].values()
    assert set(scores) == {"speaker", "chapter"}
