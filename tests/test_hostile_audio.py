"""Audio that a stranger made: it is refused by name, and the job goes on with the rest."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from conftest import babble

from sjepa.audio.io import BadAudioError, read_audio, read_header
from sjepa.audio.stream import stream_audio
from sjepa.config import Config
from sjepa.data.build import build_index
from sjepa.train.loop import pretrain


def index(source: Path, out: Path) -> tuple[dict, str]:
    """An index of a folder, and what it refused."""
    facts = build_index([str(source)], out, layout="auto", max_seconds=15.0, cut_transcribed=False, show=False)
    return facts, (out / "refused.txt").read_text()


@pytest.fixture
def one_damaged(tmp_path: Path) -> Path:
    """A folder of sound WAVs, and an MP3 with random bytes inside that makes the decoder raise ValueError."""
    folder = tmp_path / "audio"
    folder.mkdir()
    for number in range(4):
        soundfile.write(folder / f"{number}.wav", babble(1.3, number), 16_000)
    soundfile.write(folder / "damaged.mp3", babble(20.0, 9), 16_000, format="MP3")
    content = bytearray((folder / "damaged.mp3").read_bytes())
    rng = np.random.default_rng(1)
    for _ in range(24):
        place = int(rng.integers(0, len(content)))
        content[place:place] = rng.bytes(1500)
    (folder / "damaged.mp3").write_bytes(content)
    return folder


def test_whatever_a_decoder_raises_is_about_its_file(one_damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = one_damaged / "damaged.mp3"
    with pytest.raises(BadAudioError, match=r"damaged\.mp3: cannot be decoded"):
        read_header(file)
    for error in (TypeError("not bytes"), MemoryError(), AssertionError("an assert of the binding"), ValueError()):

        def fail(*_: object, error: BaseException = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(soundfile.SoundFile, "read", fail)
        for read in (read_header, read_audio, lambda path: list(stream_audio(path))):
            with pytest.raises(BadAudioError, match=r"0\.wav: cannot be decoded"):
                read(one_damaged / "0.wav")


def test_a_damaged_mp3_ends_neither_an_index_nor_a_training(
    one_damaged: Path, tmp_path: Path, micro: Callable[..., Config]
) -> None:
    facts, refused = index(one_damaged, tmp_path / "index")
    assert facts["files"] == 4
    assert "damaged.mp3: cannot be decoded" in refused
    run = tmp_path / "run"
    assert pretrain(micro(phase1={"steps": 1}, phase2={"steps": 1}), one_damaged, run, show=False)
    assert "damaged.mp3: cannot be decoded" in (run / "refused.txt").read_text()
