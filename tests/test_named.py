"""Encoders that ship with the package are found by name, offline, by every command that takes an encoder."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sjepa import Encoder, UserError
from sjepa.cli import dispatch
from sjepa.config import Config
from sjepa.data.espeak import Voice
from sjepa.data.synthetic import speak
from sjepa.evaluate.upstream import load_upstream
from sjepa.files import hash_file
from sjepa.model import named
from sjepa.model.formats import fingerprint
from sjepa.runs.locate import find_encoder
from sjepa.settings_file import load_preset
from sjepa.train.run import Run


@pytest.fixture
def shipped(finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with two encoders."""
    folder = tmp_path / "weights"
    for name in ("english-compact", "iban-compact"):
        dispatch(["export", str(finished_run), str(folder / name), "--to", "release"])
    monkeypatch.setattr(named, "WEIGHTS", folder)
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_name_works_like_its_folder_everywhere(
    shipped: Path, corpus: Path, tmp_path: Path, micro: Callable[..., Config]
) -> None:
    encoder = Encoder.from_pretrained("english-compact")
    assert encoder.clusters.components == 12
    assert load_upstream("english-compact").fingerprint == fingerprint(encoder)
    assert load_upstream("english-compact").name == "english-compact"
    assert load_upstream("untrained:english-compact").name == "untrained english-compact"
    file = str(min(corpus.glob("*.wav")))
    dispatch(["embed", file, "--encoder", "english-compact", "--out", "out", "--what", "units"])
    assert np.load(next(Path("out").glob("*.npz")))["units"].max() < 12
    dispatch(["export", "english-compact", "hf", "--to", "hf"])
    assert fingerprint(Encoder.from_pretrained("hf")) == fingerprint(encoder)
    run = Run.start(micro(), torch.device("cpu"))
    run.load_encoder_weights("english-compact")
    assert fingerprint(run.model.encoder) == fingerprint(encoder)


def test_an_unknown_name_gets_the_list_and_a_path_comes_first(shipped: Path, finished_run: Path) -> None:
    meant = r"there is no encoder english-compat \(did you mean english-compact\?\): "
    words = meant + ".*sjepa ships with english-compact, iban-compact"
    for load in (Encoder.from_pretrained, load_upstream, find_encoder):
        with pytest.raises(UserError, match=words):
            load("english-compat")  # type: ignore[operator]
    small = replace(Encoder.from_pretrained("english-compact").config, layers=1)
    Encoder(small).save_pretrained("iban-compact")
    assert Encoder.from_pretrained("iban-compact").config.layers == 1


@pytest.mark.parametrize("load", [Encoder.from_pretrained, load_upstream, find_encoder])
def test_a_model_on_hugging_face_is_not_downloaded(
    load: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    online = "models on Hugging Face are not downloaded: give a local folder"
    with pytest.raises(UserError, match=f"^there is no encoder facebook/hubert-base-ls960: .*; {online}; "):
        load("facebook/hubert-base-ls960")
    (tmp_path / "runs").mkdir()
    for local in ("runs/mine", "nowhere", str(tmp_path / "nowhere")):
        with pytest.raises(UserError, match=r"^there is no encoder") as refusal:
            load(local)
        assert "Hugging Face" not in str(refusal.value)


def test_a_mistyped_baseline_gets_a_suggestion_where_baselines_are_accepted() -> None:
    with pytest.raises(
        UserError, match=r"there is no encoder logmell \(did you mean logmel\?\): .*mfcc\+context, logmel;"
    ):
        load_upstream("logmell")
    with pytest.raises(UserError, match=r"there is no encoder logmell: .* or a file of weights"):
        find_encoder("logmell")


def test_the_encoder_of_the_package_is_complete_and_separates_phones() -> None:
    folder = named.WEIGHTS / "english-compact"
    sums = dict(line.split()[::-1] for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert sums.keys() == {file.name for file in folder.iterdir()} - {"SHA256SUMS"}
    assert all(hash_file(folder / name) == expected for name, expected in sums.items())
    assert sum(file.stat().st_size for file in folder.iterdir()) < 25e6
    encoder = Encoder.from_pretrained("english-compact")
    assert replace(encoder.config, attention_start=1.0) == load_preset("compact").encoder  # a start is not stored
    spoken = speak("She had your dark suit in greasy wash water all year.", Voice("one", "f", "en-us+f2"))
    speech = torch.from_numpy(spoken.samples)[None]
    noise = 0.1 * torch.randn(speech.shape, generator=torch.Generator().manual_seed(0))
    # The head reads the cluster of a frame from the last layer, the mixture from the layer below, at 500 clusters.
    agreement = [
        float((encoder.units(x, source="mixture") == encoder.units(x, source="head")).float().mean())
        for x in (speech, noise)
    ]
    assert agreement[0] > 0.3
    assert agreement[1] < 0.1


def test_a_package_without_encoders_reports_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(named, "WEIGHTS", tmp_path)
    with pytest.raises(UserError, match="no encoder ships with sjepa yet"):
        Encoder.from_pretrained("english-compact")


def test_the_compact_preset_fits_into_25_megabytes() -> None:
    config = load_preset("compact")
    with torch.device("meta"):
        encoder = Encoder(config.encoder)
    parameters = sum(p.numel() for p in encoder.parameters())
    assert 10e6 <= parameters <= 13e6
    width = config.encoder.hidden_size
    mixture = 4 * (2 * width + 1) * config.phases[-1].k
    head = 2 * (2 * width * width + width * config.phases[-1].k)
    assert 2 * parameters + mixture + head < 25e6
