"""ABX on ZeroSpeech item files: triphones of features that separate phones, and files that are refused."""

import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import soundfile

from sjepa.cli import dispatch
from sjepa.commands.units import find_item_audio
from sjepa.errors import UserError
from sjepa.evaluate.abx import HEADER, item_errors, item_lines, read_item_files
from sjepa.evaluate.superb.features import FeatureStore


def items(path: Path, files: int = 6) -> Path:
    """Each file says two phones in two contexts, in the voice of one of three speakers."""
    lines = [HEADER]
    for number in range(files):
        for place, (phone, before, after) in enumerate(
            [("a", "k", "t"), ("b", "k", "t"), ("a", "s", "p"), ("b", "s", "p")]
        ):
            lines.append(f"f{number} {0.2 * place:.2f} {0.2 * place + 0.2:.2f} {phone} {before} {after} s{number % 3}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_an_item_file_names_its_files(tmp_path: Path) -> None:
    assert read_item_files(items(tmp_path / "x.item", 3)) == ["f0", "f1", "f2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f0 0 1 a b c s\n", "is not an item file: its first line should be '#file onset"),
        (f"{HEADER}\nf0 0 1 a b c\n", r"x\.item line 2: not '#file onset .*: f0 0 1 a b c"),
        (f"{HEADER}\nf0 0 one a b c s\n", r"x\.item line 2: not '#file onset"),
        (f"{HEADER}\n", "names no files"),
    ],
)
def test_other_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.item").write_text(text)
    with pytest.raises(UserError, match=message):
        read_item_files(tmp_path / "x.item")


def test_names_with_spaces_and_unknown_speakers_make_a_valid_item_file(tmp_path: Path) -> None:
    phones = [np.array(["a b", "a b", ""]), np.array(["a b", "z"]), np.array(["c", "SIL"])]
    speakers = ["Ann Lee", "", "Ann"]
    lines = list(item_lines(phones, speakers, 50))
    assert lines == ["0 0.00 0.04 p0 p1 p2 s0", "2 0.00 0.02 p3 p1 p1 s1"]
    (tmp_path / "x.item").write_text("\n".join([HEADER, *lines]) + "\n")
    assert read_item_files(tmp_path / "x.item") == ["0", "2"]


def test_abx_without_speakers_is_refused_before_the_encoder_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros(16_000), 16_000)
    (tmp_path / "labels.jsonl").write_text(json.dumps({"path": "a.wav", "phones": [[0.0, 1.0, "a"]]}) + "\n")
    monkeypatch.setitem(sys.modules, "fastabx", types.ModuleType("fastabx"))
    monkeypatch.setattr(FeatureStore, "batches", lambda *_: pytest.fail("the encoder ran"))
    command = ["units", "--encoder", "logmel", "--units", "kmeans", "--data", str(tmp_path), "--abx"]
    with pytest.raises(UserError, match="ABX compares phones within and across speakers: no utterance has a speaker"):
        dispatch([*command, "--out", str(tmp_path / "out")])


def test_triphone_abx_is_low_for_phones_apart(tmp_path: Path) -> None:
    """Against fastabx where it is installed; otherwise the refusal is one clear line."""
    item = items(tmp_path / "x.item")
    generator = np.random.default_rng(0)
    frames = np.repeat([0, 1, 0, 1], 10)
    apart = {f"f{n}": np.eye(3)[frames] + 0.05 * generator.normal(size=(40, 3)) for n in range(6)}
    noise = {f"f{n}": generator.normal(size=(40, 3)) for n in range(6)}
    try:
        import fastabx  # noqa: F401
    except ImportError:
        with pytest.raises(UserError, match=r"ABX needs fastabx, which needs Python 3\.12"):
            item_errors(item, apart, 0, 50)
        return
    assert max(item_errors(item, apart, 0, 50).values()) < 1
    assert min(item_errors(item, noise, 0, 50).values()) > 20
    assert set(item_errors(item, apart, 0, 50)) == {"abx_triphone_within", "abx_triphone_across"}


def test_the_command_measures_items_on_audio_files(tmp_path: Path) -> None:
    item = items(tmp_path / "x.item")
    command = [
        "units",
        "--encoder",
        "logmel",
        "--data",
        str(tmp_path),
        "--items",
        str(item),
        "--out",
        str(tmp_path / "out"),
    ]
    with pytest.raises(UserError, match=r"x\.item names f0 and 5 more that are not in"):
        dispatch(command)
    t = np.arange(3_200) / 16_000
    for number in range(6):
        tones = [0.1 * np.sin(2 * np.pi * hertz * t) for hertz in (300, 2000, 300, 2000)]
        soundfile.write(tmp_path / f"f{number}.wav", np.concatenate([*tones, np.zeros(400)]), 16_000)
    try:
        import fastabx  # noqa: F401
    except ImportError:
        with pytest.raises(UserError, match="ABX needs fastabx"):
            dispatch(command)
        return
    dispatch(command)
    scores = json.loads((tmp_path / "out" / "results.json").read_text())["metrics"]
    assert scores["abx_triphone_within"] < 5


@pytest.mark.parametrize(
    "option",
    [
        ["--units", "kmeans"],
        ["--clusters", "9"],
        ["--codebook", "audio"],
        ["--frames", "5"],
        ["--abx"],
        ["--alignments", "grids"],
        ["--subset", "test-clean"],
    ],
)
def test_options_without_effect_on_items_are_refused(option: list[str], tmp_path: Path) -> None:
    command = ["units", "--encoder", "logmel", "--data", str(tmp_path), "--items", str(items(tmp_path / "x.item"))]
    with pytest.raises(UserError, match=rf"^{option[0]} has no effect with --items"):
        dispatch([*command, *option])


def test_two_audio_files_of_one_name_are_refused_if_items_name_them(tmp_path: Path) -> None:
    item = items(tmp_path / "x.item", 1)
    for folder, name in [("a", "f0"), ("a", "other"), ("b", "other")]:
        (tmp_path / folder).mkdir(exist_ok=True)
        soundfile.write(tmp_path / folder / f"{name}.wav", np.zeros(800), 16_000)
    (found,) = find_item_audio(item, ["f0"], tmp_path)
    assert found.utterance.path == tmp_path / "a" / "f0.wav"
    soundfile.write(tmp_path / "b" / "f0.wav", np.zeros(800), 16_000)
    with pytest.raises(UserError, match=r"x\.item names f0, which may be \S+f0\.wav and \S+f0\.wav: keep one"):
        dispatch(["units", "--encoder", "logmel", "--data", str(tmp_path), "--items", str(item)])
