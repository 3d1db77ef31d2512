"""Mixture and cluster head travel with the encoder: posteriors and units against scikit-learn and the run itself."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from conftest import babble
from sklearn.mixture import GaussianMixture

from sjepa import Encoder, UserError
from sjepa.analysis.restored_run import RestoredRun
from sjepa.audio.io import read_audio
from sjepa.audio.mfcc import mfcc
from sjepa.cli import dispatch
from sjepa.config import Config
from sjepa.runs.checkpoint import load_latest, state_file
from sjepa.runs.folder import RunFolder
from sjepa.runs.steps import load_encoder_at
from sjepa.train.loop import pretrain


def export(*arguments: object) -> None:
    dispatch(["export", *map(str, arguments)])


def embed(*arguments: object) -> None:
    dispatch(["embed", *map(str, arguments)])


def sklearn_posteriors(tensors: dict[str, torch.Tensor], frames: torch.Tensor) -> np.ndarray:
    """Posteriors by another implementation, in fp64."""
    weights, means, variances = (tensors[name].double().numpy() for name in ("weights", "means", "variances"))
    gmm = GaussianMixture(len(means), covariance_type="diag")
    gmm.weights_, gmm.means_, gmm.covariances_ = weights / weights.sum(), means, variances
    gmm.precisions_cholesky_ = 1 / np.sqrt(variances)
    posteriors: np.ndarray = gmm.predict_proba(frames.double().numpy())
    return posteriors


@pytest.fixture(scope="module")
def waveforms() -> torch.Tensor:
    return torch.from_numpy(np.stack([babble(1.0, seed)[:15_760] for seed in (3, 4)]))  # whole frames


@pytest.fixture(scope="module")
def exported(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "encoder"
    export(finished_run, folder, "--to", "hf")
    return folder


@torch.no_grad()
def test_posteriors_of_an_exported_folder_are_scikit_learns_on_the_layer_the_file_names(
    finished_run: Path, exported: Path, waveforms: torch.Tensor
) -> None:
    with safetensors.safe_open(exported / "clusters.safetensors", "pt") as file:
        header = json.loads(file.metadata()["clusters"])
    tensors = safetensors.torch.load_file(exported / "clusters.safetensors")
    logged = [event for event in RunFolder(finished_run).events() if event.get("phase") == 2]
    assert header["layer"] == [e["active_layer"] for e in logged if e.get("active_layer") is not None][-1]
    assert (header["targets"], header["phase"], header["step"], header["centred"]) == ("online-gmm", 2, 12, False)
    encoder = Encoder.from_pretrained(exported)
    frames = encoder(waveforms).hidden_states[header["layer"] + 1]
    found = encoder.posteriors(waveforms)
    assert found.shape == (2, 49, 12)
    for ours, x in zip(found, frames, strict=True):
        np.testing.assert_allclose(ours.numpy(), sklearn_posteriors(tensors, x), atol=1e-4)
    np.testing.assert_array_equal(encoder.units(waveforms, source="mixture"), found.argmax(-1))
    checkpoint = load_latest(RunFolder(finished_run))
    assert checkpoint is not None
    weights = {n.removeprefix("head."): t for n, t in checkpoint[0]["model"].items() if n.startswith("head.")}
    x = encoder(waveforms).last
    for part in ("layers.0", "layers.2"):
        x = torch.nn.functional.gelu(x @ weights[f"{part}.weight"].T + weights[f"{part}.bias"])
    logits = x @ weights["output.weight"].T + weights["output.bias"]
    torch.testing.assert_close(encoder.head_posteriors(waveforms), logits.softmax(-1), atol=1e-5, rtol=1e-4)
    np.testing.assert_array_equal(encoder.units(waveforms), logits.argmax(-1))


def test_an_utterance_in_a_padded_batch_has_the_posteriors_it_has_alone(
    exported: Path, waveforms: torch.Tensor
) -> None:
    encoder = Encoder.from_pretrained(exported)
    lengths = torch.tensor([15_760, 9_000])
    for method in (encoder.posteriors, encoder.head_posteriors):
        together, alone = method(waveforms, lengths), method(waveforms[1:, :9_000])
        torch.testing.assert_close(together[1, : alone.shape[1]], alone[0], atol=1e-4, rtol=1e-3)
        assert not together[1, alone.shape[1] :].any()
    assert (encoder.units(waveforms, lengths)[1, 27:] == -1).all()


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        (torch.tensor([32_000, 9_000]), "length 32000: lengths should be from 400 to 16000"),
        (torch.tensor([16_000, 10]), "length 10: lengths should be from 400"),
        (torch.tensor([-5, 9_000]), "length -5: lengths should be from 400"),
        (torch.tensor([0.5, 1.0]), "whole numbers of samples, not a tensor of torch.float32"),
        (torch.tensor([9_000]), r"lengths should have shape \(2,\), one per waveform, not \(1,\)"),
        ([16_000, 9_000], "lengths should be a tensor .* not builtins.list"),
    ],
)
def test_lengths_that_cannot_be_right_are_refused(exported: Path, lengths: Any, words: str) -> None:
    encoder = Encoder.from_pretrained(exported)
    for method in (encoder, encoder.posteriors, encoder.head_posteriors, encoder.units):
        with pytest.raises(UserError, match=words):
            method(torch.zeros(2, 16_000), lengths)


def test_other_arguments_that_cannot_be_right_are_refused(exported: Path) -> None:
    encoder = Encoder.from_pretrained(exported)
    with pytest.raises(UserError, match=r"tensor of floats, not numpy\.ndarray: torch\.from_numpy"):
        encoder(np.zeros((1, 16_000), np.float32))
    with pytest.raises(UserError, match=r"tensor of floats, not a tensor of torch\.int16"):
        encoder(torch.zeros(1, 16_000, dtype=torch.int16))
    with pytest.raises(UserError, match="units come from mixture or head, not from 'mix'"):
        encoder.units(torch.zeros(1, 16_000), source="mix")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def projected_run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose mixture reads a few centred principal components, at a temperature."""
    from conftest import micro_config

    phase = {"steps": 3, "centred": True, "temperature": 3.0, "visible_loss_until": 1.0, "augment_until": 1.0}
    run = tmp_path_factory.mktemp("runs") / "projected"
    config = micro_config(
        phase1=phase, phase2=phase | {"dimensions": 5}, layer={"choice": 1}, train={"precision": "fp32"}
    )
    assert pretrain(config, corpus, run, show=False)
    return run


@torch.no_grad()
def test_the_target_encoder_with_its_mixture_gives_the_targets_of_training(
    projected_run: Path, tmp_path: Path, waveforms: torch.Tensor
) -> None:
    export(projected_run, tmp_path / "ema", "--to", "hf", "--ema")
    encoder = Encoder.from_pretrained(tmp_path / "ema")
    assert encoder.clusters.info.temperature == 3.0
    restored = RestoredRun(projected_run)
    for waveform in waveforms:
        (frames,) = restored(waveform.numpy())
        ours = encoder.posteriors(waveform[None], temperature=3.0)[0]
        torch.testing.assert_close(ours, frames.target, atol=1e-4, rtol=1e-3)
        plain = encoder.posteriors(waveform[None])[0]
        assert frames.plain is not None
        torch.testing.assert_close(plain, frames.plain, atol=1e-4, rtol=1e-3)
    trained = Encoder.from_pretrained(projected_run)
    assert not torch.equal(trained.posteriors(waveforms), encoder.posteriors(waveforms))  # of other weights


@torch.no_grad()
def test_the_mixture_of_phase_1_reads_mfccs(finished_run: Path, waveforms: torch.Tensor) -> None:
    encoder = Encoder.from_pretrained(finished_run / "encoder-phase1")
    assert encoder.clusters.info.layer is None
    tensors = safetensors.torch.load_file(finished_run / "gmm-phase1.safetensors")
    frames = mfcc(waveforms, RunFolder(finished_run).config().mfcc)
    for ours, x in zip(encoder.posteriors(waveforms), frames, strict=True):
        np.testing.assert_allclose(ours.numpy(), sklearn_posteriors(tensors, x), atol=1e-3)


@pytest.mark.parametrize("what", ["mixture", "head", "units"])
def test_embed_writes_what_python_gives(what: str, projected_run: Path, corpus: Path, tmp_path: Path) -> None:
    export(projected_run, tmp_path / "encoder", "--to", "hf")
    file = min(corpus.glob("*.wav"))
    more = ("--from", "mixture") if what == "units" else ()
    embed(file, "--encoder", tmp_path / "encoder", "--out", tmp_path / "out", "--what", what, *more)
    found = np.load(tmp_path / "out" / f"{file.name}.npz")
    encoder, samples = Encoder.from_pretrained(projected_run), torch.from_numpy(read_audio(file))[None]
    if what == "units":
        np.testing.assert_array_equal(found["units"], encoder.units(samples, source="mixture")[0])
    else:
        wanted = (encoder.posteriors if what == "mixture" else encoder.head_posteriors)(samples)[0]
        np.testing.assert_allclose(found["posteriors"], wanted, atol=1e-5)


def test_clusters_also_come_from_the_checkpoint_or_from_the_mixture_of_the_run(
    finished_run: Path, tmp_path: Path, waveforms: torch.Tensor
) -> None:
    wanted = Encoder.from_pretrained(finished_run)
    bare = shutil.copytree(finished_run, tmp_path / "bare")
    (bare / "encoder" / "clusters.safetensors").unlink()
    for source in (bare, bare / "encoder"):
        encoder = Encoder.from_pretrained(source)
        assert encoder.clusters.info.layer == wanted.clusters.info.layer
        torch.testing.assert_close(encoder.posteriors(waveforms), wanted.posteriors(waveforms))
    shutil.rmtree(bare / "checkpoints")
    encoder = Encoder.from_pretrained(bare)
    torch.testing.assert_close(encoder.posteriors(waveforms), wanted.posteriors(waveforms))
    torch.testing.assert_close(encoder.head_posteriors(waveforms), wanted.head_posteriors(waveforms))
    file = bare / "gmm-phase2.safetensors"
    safetensors.torch.save_file(safetensors.torch.load_file(file), file)
    with pytest.raises(UserError, match=r"gmm-phase2\.safetensors has no header that describes its clusters"):
        _ = Encoder.from_pretrained(bare).clusters


@pytest.mark.parametrize("layer", [0, 1])
def test_the_mixture_of_a_checkpoint_reads_the_layer_of_its_last_step(
    layer: int, finished_run: Path, tmp_path: Path
) -> None:
    run = RunFolder(shutil.copytree(finished_run, tmp_path / "run"))
    assert run.config().layer.choice is None
    file = state_file(run.checkpoint(run.step))
    state = json.loads(file.read_text())
    # Hysteresis can keep a layer active although another one has a higher rank, and a check can choose another one.
    file.write_text(json.dumps(state | {"held_layer": layer, "active_layer": 1 - layer, "ranks": [2.0, 1.0]}))
    assert load_encoder_at(run.path, run.step).clusters.info.layer == layer
    (run.encoder / "clusters.safetensors").unlink()
    assert Encoder.from_pretrained(run.path).clusters.info.layer == layer


def test_clusters_of_other_weights_are_refused(exported: Path, finished_run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(exported, tmp_path / "mixed")
    shutil.copy(finished_run / "encoder-phase1" / "model.safetensors", folder)
    encoder = Encoder.from_pretrained(folder)  # the encoder itself can be used
    with pytest.raises(UserError, match="belongs to other weights"):
        encoder.units(torch.zeros(1, 16_000))
    (folder / "clusters.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot be read"):
        Encoder.from_pretrained(folder).units(torch.zeros(1, 16_000))


def test_units_compares_the_mixture_with_phones_from_an_exported_folder(
    projected_run: Path, tmp_path: Path, corpus: Path
) -> None:
    export(projected_run, tmp_path / "encoder", "--to", "hf")
    data = tmp_path / "labelled"
    data.mkdir()
    rows = []
    for file in sorted(corpus.glob("*.wav"))[:4]:
        shutil.copy(file, data)
        rows.append({"path": file.name, "speaker": "s", "phones": [[0.0, 0.5, "a"], [0.5, 3.0, "b"]]})
    (data / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for units in ("head", "mixture"):
        call = ["--encoder", tmp_path / "encoder", "--units", units, "--data", data, "--out", tmp_path / units]
        dispatch(["units", *map(str, call)])
    result = json.loads((tmp_path / "mixture" / "results.json").read_text())
    assert result["units"] == {"kind": "mixture", "layer": "layer 1", "clusters": None, "codebook": None}
    assert 0 <= result["metrics"]["pnmi"] <= 1


def test_codebooks_without_posteriors_have_units_alone(
    corpus: Path, tmp_path: Path, micro: Callable[..., Config], waveforms: torch.Tensor
) -> None:
    phase = {"steps": 2, "visible_loss_until": 1.0, "augment_until": 1.0}
    config = micro(phase1=phase | {"targets": "best-rq"}, phase2=phase | {"targets": "same"})
    assert pretrain(config, corpus, tmp_path / "run", show=False)
    encoder = Encoder.from_pretrained(tmp_path / "run")
    with pytest.raises(UserError, match="best-rq has no posteriors"):
        encoder.posteriors(waveforms)
    restored = RestoredRun(tmp_path / "run")
    (frames,) = restored(waveforms[0].numpy())
    np.testing.assert_array_equal(encoder.units(waveforms, source="mixture")[0], frames.target.argmax(-1))
