"""Selecting one language of a multilingual corpus, by any of the columns that lists use."""

import json
from pathlib import Path

import pytest
import soundfile
from conftest import babble

from sjepa.cli import dispatch
from sjepa.data.index import open_index, read_table
from sjepa.data.languages import is_spoken_in, read_language
from sjepa.data.layouts import ByteRange, Item
from sjepa.errors import UserError

pytest.importorskip("pyarrow")
LANGUAGES = ("en", "EN", "en-US", "de", "enm", None)


def make_list(folder: Path, column: str) -> Path:
    """A Granary-like manifest with one utterance per language, and one that names none."""
    folder.mkdir()
    rows = []
    for number, language in enumerate(LANGUAGES):
        soundfile.write(folder / f"{number}.wav", babble(0.5, number), 16_000)
        row = {"audio_filepath": f"{number}.wav", "duration": 0.5, "text": "hello", "target_lang": "de"}
        rows.append(row if language is None else row | {column: language})
    (folder / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "list.jsonl"


@pytest.mark.parametrize("column", ["lang", "source_lang"])
def test_only_utterances_of_the_language_are_indexed(column: str, tmp_path: Path) -> None:
    listed, out = make_list(tmp_path / "granary", column), tmp_path / "index"
    dispatch(["index", str(listed), "--out", str(out), "--language", "en"])
    assert read_table(out / "labels.arrow").column("id").to_pylist() == ["0", "1", "2"]
    assert len(open_index(str(out))) == 3
    assert (out / "refused.txt").read_text() == "5: it has no language (lang, language, source_lang)\n"
    facts = json.loads((out / "index.json").read_text())
    assert facts["languages"] == ["en"]
    dispatch(["index", str(listed), "--out", str(out), "--language", "en"])  # complete already
    with pytest.raises(UserError, match="already holds another index"):
        dispatch(["index", str(listed), "--out", str(out)])
    dispatch(["index", str(listed), "--out", str(tmp_path / "two"), "--language", "de", "enm"])
    assert read_table(tmp_path / "two" / "labels.arrow").column("id").to_pylist() == ["3", "4"]


def test_a_language_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    listed = make_list(tmp_path / "granary", "lang")
    with pytest.raises(UserError, match=r"--language fr: no utterance matches; there are en, EN, en-US, de, enm"):
        dispatch(["index", str(listed), "--out", str(tmp_path / "index"), "--language", "fr"])
    with pytest.raises(UserError, match="no column is called lang, language"):
        dispatch(["index", str(tmp_path / "granary"), "--layout", "folder", "--out", str(tmp_path / "index"),
                  "--language", "en"])  # fmt: skip
    assert not (tmp_path / "index").exists()


def test_other_layouts_name_it_in_their_own_column() -> None:
    for name in ("language", "locale", "lang"):  # lhotse, Common Voice, Kaldi's utt2lang
        assert read_language(Item(ByteRange("a.wav"), "a", labels=json.dumps({name: "en_GB", "other": 3}))) == "en_GB"
    assert read_language(Item(ByteRange("a.wav"), "a")) == ""
    assert is_spoken_in("en_GB", "en-gb")
    assert not is_spoken_in("en-GB", "en-US")
    assert not is_spoken_in("eng", "en")
