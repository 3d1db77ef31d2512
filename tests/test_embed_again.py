"""Embedding into a folder with output: continued, refused or replaced, and nothing else is deleted."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import safetensors.numpy
import soundfile
import torch
from conftest import babble
from test_embed import refused, run_embed

from sjepa import Encoder, UserError
from sjepa.embed import recordings
from sjepa.model import formats
from sjepa.model.formats import save_folder, to_hugging_face


def test_what_was_stopped_is_continued_and_other_settings_are_refused(
    finished_run: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, out = sorted(corpus.glob("*.wav"))[:3], tmp_path / "out"
    run_embed(*files[:2], "--encoder", finished_run, "--out", out)
    before = {file: file.stat().st_mtime_ns for file in out.glob("*.npz")}
    assert len(before) == 2
    run_embed(*files, "--encoder", finished_run, "--out", out)
    assert "2 existed already" in capsys.readouterr().out
    assert {file: file.stat().st_mtime_ns for file in before} == before
    run_embed(*files, "--encoder", finished_run, "--out", out)
    assert f"the output of 3 recordings is already in {out}; --force computes it again" in capsys.readouterr().out
    assert len(list(out.glob("*.npz"))) == 3
    refused("layer was last, now 0", files[0], "--encoder", finished_run, "--out", out, "--layer", 0)
    run_embed(files[0], "--encoder", finished_run, "--out", out, "--layer", 0, "--force")
    assert len(list(out.glob("*.npz"))) == 1  # the others were of the last layer
    run_embed(*files, "--encoder", finished_run, "--out", out, "--layer", 0)
    assert "1 existed already" in capsys.readouterr().out
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("mine")
    refused(
        "was not written by `sjepa embed`.*--force", files[0], "--encoder", finished_run, "--out", tmp_path / "mine"
    )


@pytest.mark.parametrize("kind", ["npz", "safetensors", "parquet"])
def test_the_output_of_another_recording_with_the_same_name_is_refused(
    kind: str, finished_run: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = sorted(corpus.glob("*.wav"))[:2]
    for folder, source in (("a", one), ("b", other), ("moved", one)):
        (tmp_path / folder).mkdir()
        shutil.copy(source, tmp_path / folder / "x.wav")
    common = ("--encoder", finished_run, "--out", tmp_path / "out", "--format", kind)
    run_embed(tmp_path / "a", *common)
    refused(r"x\.wav\.\w+ has the output of another recording than .*x\.wav.*--force", tmp_path / "b", *common)
    run_embed(tmp_path / "moved", *common)
    assert "Nothing to do" in capsys.readouterr().out
    run_embed(tmp_path / "b", *common, "--force")
    run_embed(tmp_path / "b", *common)
    assert "Nothing to do" in capsys.readouterr().out


def test_an_encoder_is_the_same_however_its_path_is_spelled(
    finished_run: Path,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    encoder, out, files = tmp_path / "enc", tmp_path / "out", sorted(corpus.glob("*.wav"))[:3]
    shutil.copytree(finished_run / "encoder", encoder)
    monkeypatch.chdir(tmp_path)
    run_embed(*files[:2], "--encoder", "enc", "--out", out)
    run_embed(*files, "--encoder", encoder, "--out", out)
    assert "2 existed already" in capsys.readouterr().out
    run_embed(files[0], "--encoder", f"../{tmp_path.name}/enc", "--out", out, "--layer", 0, "--force")
    assert len(list(out.glob("*.npz"))) == 1  # the others were of the last layer
    other = Encoder(Encoder.from_pretrained(encoder).config)
    save_folder(encoder, other.state_dict(), to_hugging_face(other.config))
    words = rf"encoder was ../{tmp_path.name}/enc \(\w{{8}}\), now enc \(\w{{8}}\)"
    refused(words, *files, "--encoder", "enc", "--out", out, "--layer", 0)


def test_units_of_other_clusters_are_refused(finished_run: Path, corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(finished_run / "encoder", tmp_path / "enc")
    file, out = min(corpus.glob("*.wav")), tmp_path / "out"
    common = (file, "--encoder", tmp_path / "enc", "--out", out, "--what", "units")
    run_embed(*common)
    clusters = Encoder.from_pretrained(tmp_path / "enc").clusters
    clusters.head.output.bias.data[0] += 1
    clusters.save(tmp_path / "enc" / "clusters.safetensors", encoder=clusters.info.encoder)
    refused(r"made with other settings \(clusters was \w+, now \w+\): .*--force", *common)
    settings = json.loads((out / "_embed.json").read_text())
    del settings["clusters"]
    (out / "_embed.json").write_text(json.dumps(settings))
    run_embed(*common)  # output of an earlier version counts as done


def test_the_output_of_a_stream_is_not_taken_for_that_of_recordings(
    finished_run: Path, corpus: Path, tmp_path: Path
) -> None:
    file, out = min(corpus.glob("*.wav")), tmp_path / "out"
    common = ("--encoder", finished_run, "--out", out)
    run_embed(file, "--live", *common)
    live = np.load(out / f"{file.name}.npz")["features"]
    refused("out has the output of --live: choose another --out, or replace it with --force", file, *common)
    run_embed(file, *common, "--force")
    assert not np.array_equal(np.load(out / f"{file.name}.npz")["features"], live)
    settings = (out / "_embed.json").read_text()
    run_embed(file, "--live", *common, "--force")
    assert (out / "_embed.json").read_text() == settings  # of the recordings in the folder
    refused(f"{file.name}.npz has the output of another recording than", file, *common)
    with pytest.raises(UserError, match="has output with other settings: choose another --out, or write to it with"):
        run_embed(max(corpus.glob("*.wav")), "--live", *common)


def test_a_change_of_normalisation_is_another_setting(finished_run: Path, corpus: Path, tmp_path: Path) -> None:
    encoder = shutil.copytree(finished_run / "encoder", tmp_path / "encoder")
    common = (min(corpus.glob("*.wav")), "--encoder", encoder, "--out", tmp_path / "out")
    run_embed(*common)
    settings = json.loads((encoder / "preprocessor_config.json").read_text())
    (encoder / "preprocessor_config.json").write_text(json.dumps(settings | {"do_normalize": True}))
    refused(r"was made with other settings \(do_normalize was False, now True\)", *common)


def test_a_recording_that_is_replaced_while_it_is_read_is_not_taken_for_the_new_one(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "audio").mkdir()
    for number in range(2):
        soundfile.write(tmp_path / "audio" / f"{number}.wav", babble(1.0, number), 16_000)
    read = recordings.read_audio

    def replace_after_reading(path: str) -> np.ndarray:
        samples = read(path)
        soundfile.write(path, babble(1.0, 9), 16_000)
        return samples

    common = (tmp_path / "audio", "--encoder", finished_run, "--out", tmp_path / "out")
    with monkeypatch.context() as patched:
        patched.setattr(recordings, "read_audio", replace_after_reading)
        run_embed(*common)
    refused("has the output of another recording than", *common)


def test_a_name_that_is_too_long_for_an_output_file_is_left_out(finished_run: Path, tmp_path: Path) -> None:
    (tmp_path / "audio").mkdir()
    for name in ("a", 251 * "b"):
        soundfile.write(tmp_path / "audio" / f"{name}.wav", babble(1.0, 0), 16_000)
    run_embed(tmp_path / "audio", "--encoder", finished_run, "--out", tmp_path / "out")
    assert (tmp_path / "out" / "a.wav.npz").is_file()
    assert "its name is too long for an output file" in (tmp_path / "out" / "_refused.txt").read_text()


def test_the_weights_are_hashed_once(
    finished_run: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    whole = formats.fingerprint_weights

    def hash_weights(weights: dict[str, torch.Tensor]) -> str:
        hashed.append(whole(weights))
        return hashed[-1]

    monkeypatch.setattr(formats, "fingerprint_weights", hash_weights)
    run_embed(min(corpus.glob("*.wav")), "--encoder", finished_run, "--out", tmp_path / "out")
    assert hashed == [json.loads((tmp_path / "out" / "_embed.json").read_text())["fingerprint"]]


@pytest.mark.parametrize("kind", ["npz", "safetensors", "parquet"])
def test_force_deletes_only_files_that_embed_wrote(kind: str, finished_run: Path, corpus: Path, tmp_path: Path) -> None:
    out, files = tmp_path / "out", sorted(corpus.glob("*.wav"))
    common = ("--encoder", finished_run, "--out", out, "--format", kind)
    run_embed(*files, *common)
    written = [out / f"{file.name}.{kind}" for file in files]
    own = [out / f"{name}.{kind}" for name in ("table", "words", "folder", "below/copy")]
    own[-1].parent.mkdir()
    shutil.copy(written[0], own[-1])  # under a name that embed did not give it
    own[2].mkdir()
    own[1].write_text("words")
    {"npz": np.savez, "safetensors": save_safetensors, "parquet": save_parquet}[kind](own[0], x=np.arange(3))
    run_embed(files[0], *common, "--layer", 0, "--force")
    assert sorted(out.rglob(f"*.{kind}")) == sorted([written[0], *own])


def save_safetensors(path: Path, **columns: np.ndarray) -> None:
    safetensors.numpy.save_file(columns, path)


def save_parquet(path: Path, **columns: np.ndarray) -> None:
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
