"""LibriSpeech dev-clean, RAVDESS and ESC-50, if they are available: counts compared with the official ones."""

import tarfile
from pathlib import Path

import numpy as np
import pytest

from sjepa.data.build import build_index
from sjepa.data.index import open_index, read_labels
from sjepa.data.opening import open_corpus
from sjepa.data.shards import write_shards

DATA = Path(__file__).parents[2] / "shared" / "data"


def extracted(folder: Path, *names: str) -> Path:
    for name in names:
        if not (DATA / name).is_file():
            pytest.skip(f"{DATA / name} is not here")
        with tarfile.open(DATA / name) as tar:
            tar.extractall(folder, filter="data")
    return folder


def test_dev_clean_has_its_official_figures(tmp_path: Path) -> None:
    folder = extracted(tmp_path / "in", "librispeech-dev-clean-a.tar", "librispeech-dev-clean-b.tar")
    facts = build_index(
        [str(folder / "LibriSpeech")],
        tmp_path / "index",
        layout="auto",
        max_seconds=15.0,
        cut_transcribed=False,
    )
    assert round(facts["hours"], 2) == 5.39
    assert facts["utterances"] == facts["transcripts"] == 2703
    assert facts["speakers"] == 40
    assert facts["sexes"] == {"F": 20, "M": 20}
    assert facts["chapters"] == 97
    assert facts["refused"] == 0
    rows = {row["id"]: row for row in read_labels(str(tmp_path / "index")).to_pylist()}
    for path in sorted((folder / "LibriSpeech").glob("dev-clean/*/*/*.trans.txt"))[::10]:
        for line in path.read_text().splitlines():
            name, _, text = line.partition(" ")
            assert rows[name]["text"] == text
    opened = open_index(str(tmp_path / "index"))
    assert np.abs(opened.read(1000)).max() > 500


def test_a_corpus_with_a_manifest_keeps_its_speakers(tmp_path: Path) -> None:
    folder = extracted(tmp_path / "in", "ravdess-speech.tar")
    facts = build_index([str(folder)], tmp_path / "index", layout="auto", max_seconds=15.0, cut_transcribed=False)
    assert facts["utterances"] == 1430
    assert facts["sexes"] == {"F": 12, "M": 12}
    assert facts["refused"] == 0


def test_noise_recordings_are_indexed_packed_and_opened(tmp_path: Path) -> None:
    folder = extracted(tmp_path / "in", "esc50-noise.tar")
    few = tmp_path / "few"
    (few / "audio").mkdir(parents=True)
    for path in sorted((folder / "audio").iterdir())[::80]:
        path.rename(few / "audio" / path.name)
    build_index([str(few)], tmp_path / "index", layout="auto", max_seconds=15.0, cut_transcribed=False)
    write_shards(str(tmp_path / "index"), tmp_path / "shards", encoding="int16", shard_hours=8.0, seed=0, workers=1)
    opened = open_corpus(str(tmp_path / "shards"), 15.0, "memory", 0.0)
    assert len(opened) == 20
    assert opened.hours == pytest.approx(20 * 5 / 3600)
