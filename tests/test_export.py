"""Exports, compared in the programs that load them: transformers, onnxruntime, torch.export."""

import json
import logging
import math
import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
import torch
import transformers
from conftest import babble
from test_cli import refused as refused_call
from test_cli import sjepa

from sjepa import Encoder, EncoderConfig, UserError
from sjepa.cli import dispatch
from sjepa.config import Config
from sjepa.evaluate.upstream import load_upstream
from sjepa.export import graphs
from sjepa.export.destination import new_folder
from sjepa.export.hugging_face import write_hugging_face
from sjepa.export.int8 import relative_error
from sjepa.export.plain import PlainEncoder
from sjepa.model.card_facts import CardFacts
from sjepa.model.formats import fingerprint
from sjepa.train.branch import branch
from sjepa.train.loop import pretrain


def export(*arguments: object) -> None:
    dispatch(["export", *map(str, arguments)])


def refused(words: str, *arguments: object) -> None:
    with pytest.raises(UserError, match=words) as refusal:
        export(*arguments)
    assert "\n" not in str(refusal.value)


@torch.no_grad()
def test_transformers_loads_the_folder_without_a_warning_and_with_equal_outputs(
    finished_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "exportiert – ü"
    export(finished_run, "--to", "hf", folder)
    capfd.readouterr()
    transformers.logging.set_verbosity_info()
    transformers.logging.enable_propagation()
    try:
        with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
            warnings.simplefilter("error")
            model = transformers.AutoModel.from_pretrained(folder)
            extractor = transformers.AutoFeatureExtractor.from_pretrained(folder)
    finally:
        transformers.logging.disable_propagation()
        transformers.logging.set_verbosity_warning()
    assert not caplog.records
    output = "".join(capfd.readouterr()).lower()
    assert not any(word in output for word in ("warn", "newly initialized", "not used", "unexpected", "missing"))
    assert type(model) is transformers.HubertModel
    encoder = Encoder.from_pretrained(finished_run)
    waveform = babble(1.3, 0)
    inputs = extractor(waveform, sampling_rate=16_000, return_tensors="pt")
    theirs = model(**inputs, output_hidden_states=True).hidden_states
    ours = encoder(torch.from_numpy(waveform)[None]).hidden_states
    assert len(ours) == len(theirs) == 3
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)
    assert fingerprint(Encoder.from_pretrained(folder)) == fingerprint(encoder)


@torch.no_grad()
@pytest.mark.parametrize("folder", ["encoder", "encoder-phase1"])
def test_transformers_loads_the_encoder_folders_of_a_run(finished_run: Path, folder: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = transformers.AutoModel.from_pretrained(finished_run / folder)
        extractor = transformers.AutoFeatureExtractor.from_pretrained(finished_run / folder)
    inputs = extractor(babble(1.0, 0), sampling_rate=16_000, return_tensors="pt")
    theirs = model(**inputs).last_hidden_state
    ours = Encoder.from_pretrained(finished_run / folder)(inputs["input_values"]).last
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


@torch.no_grad()
def test_an_exported_folder_in_fp16_is_half_as_large_and_close(finished_run: Path, tmp_path: Path) -> None:
    export(finished_run, tmp_path / "full", "--to", "hf")
    export(tmp_path / "full", tmp_path / "half", "--to", "hf", "--half", "--licence", "mit")  # from a folder
    full, half = (tmp_path / name / "model.safetensors" for name in ("full", "half"))
    assert half.stat().st_size < 0.6 * full.stat().st_size
    card = (tmp_path / "half" / "README.md").read_text(encoding="utf-8")
    assert "Weights are in fp16, rounded from fp32.\n" in card
    assert "measurements" not in card  # it has no results
    export(tmp_path / "half", tmp_path / "again", "--to", "release", "--about", "Trained on *babble* of [ours](a).")
    again = (tmp_path / "again" / "README.md").read_text(encoding="utf-8")
    assert "Weights are in fp16.\n" in again  # nothing was rounded
    assert "\n\nTrained on *babble* of [ours](a).\n\n## Use it" in again
    assert "12 of 12" in card  # what the first export knew of the training
    assert "online-gmm targets of phase 2, K = 12" in card
    ours = Encoder.from_pretrained(tmp_path / "half")
    assert all(p.dtype == torch.float32 for p in ours.parameters())
    waveform = torch.from_numpy(babble(1.0, 1))[None]
    exact = Encoder.from_pretrained(finished_run)
    assert relative(ours(waveform).last, exact(waveform).last) < 1e-3
    torch.testing.assert_close(ours.posteriors(waveform), exact.posteriors(waveform), atol=0.02, rtol=0)
    model = transformers.AutoModel.from_pretrained(tmp_path / "half", dtype=torch.float32)
    torch.testing.assert_close(model(waveform).last_hidden_state, ours(waveform).last, atol=1e-4, rtol=1e-3)
    refused("--half works with --to hf", finished_run, tmp_path / "x", "--to", "torch", "--half")


def relative(ours: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((ours.float() - wanted).norm() / wanted.norm())


def test_a_release_has_checksums_that_sha256sum_accepts(finished_run: Path, tmp_path: Path) -> None:
    export(finished_run / "encoder-phase1", tmp_path / "release", "--to", "release", "--licence", "cc-by-4.0")
    names = {path.name for path in (tmp_path / "release").iterdir()}
    weights = {"model.safetensors", "clusters.safetensors", "config.json", "preprocessor_config.json"}
    assert names == weights | {"training.json", "card.json", "README.md", "SHA256SUMS"}
    checked = subprocess.run(
        ["sha256sum", "-c", "SHA256SUMS"], cwd=tmp_path / "release", capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.count("OK") == len(names) - 1
    card = (tmp_path / "release" / "README.md").read_text(encoding="utf-8")
    assert "| steps | 6 of 12 |" in card
    assert "targets: online-gmm, not reached yet |" in card
    huggingface_hub.ModelCard(card)


@torch.no_grad()
def test_the_code_in_the_card_of_a_release_runs(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers loads weights in fp16 as they are, and cannot run them on audio in fp32."""
    export(finished_run, tmp_path / "release", "--to", "release")
    code = (tmp_path / "release" / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    names = {"waveform": babble(1.0, 2)}
    exec(code, names)
    ours = Encoder.from_pretrained(tmp_path / "release")(torch.from_numpy(babble(1.0, 2))[None])
    torch.testing.assert_close(names["states"], ours.hidden_states, atol=1e-4, rtol=1e-3)


def test_a_folder_without_a_training_record_gets_a_card_without_one(tmp_path: Path) -> None:
    small = EncoderConfig(32, 2, 2, 64, conv_channels=16, position_kernel=16, position_groups=2)
    Encoder(small).save_pretrained(tmp_path / "new")
    export(tmp_path / "new", tmp_path / "out", "--to", "hf")
    assert not (tmp_path / "out" / "clusters.safetensors").exists()
    assert "has no record of their training" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    refused("is not a run", tmp_path / "new", tmp_path / "x", "--to", "hf", "--ema")


def test_weights_that_are_not_finite_and_weights_too_large_for_fp16_are_told_apart(tmp_path: Path) -> None:
    encoder = Encoder(EncoderConfig(32, 2, 2, 64, conv_channels=16, position_kernel=16, position_groups=2))
    name, weight = next(iter(encoder.named_parameters()))
    for value, half, message in (
        (1e6, True, f"these weights are too large for fp16: {name}"),
        (math.nan, True, f"these weights are not finite numbers: {name}"),
        (math.inf, False, f"these weights are not finite numbers: {name}"),
    ):
        weight.data.flatten()[0] = value
        with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
            write_hugging_face(encoder, tmp_path, None, half)


def test_the_model_card_has_the_facts_of_the_run(finished_run: Path, tmp_path: Path) -> None:
    results = tmp_path / "results" / "probe"
    results.mkdir(parents=True)
    ours = {"name": "mine", "parameters": 5_000, "fingerprint": fingerprint(Encoder.from_pretrained(finished_run))}
    scores = {"layers": {"layer 1": {"phone linear": {"mean": 61.25, "deviation": 0.5}}}}
    (results / "results.json").write_text(json.dumps({"task": "probe", "corpus": "toys", "encoder": ours} | scores))
    other = json.dumps({"task": "probe", "corpus": "toys", "encoder": ours | {"fingerprint": "another"}} | scores)
    (tmp_path / "results" / "other").mkdir()
    (tmp_path / "results" / "other" / "results.json").write_text(other.replace("61.25", "99.75"))
    folder = tmp_path / "my-encoder"
    export(finished_run, folder, "--to", "hf", "--licence", "cc-by-4.0", "--results", tmp_path / "results")
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert card.startswith('---\nlicense: "cc-by-4.0"\n')
    data = json.loads((finished_run / "run.json").read_text())
    metadata = huggingface_hub.ModelCard.load(folder / "README.md").data
    assert (metadata.license, metadata.library_name) == ("cc-by-4.0", "transformers")
    parameters = f"{sum(p.numel() for p in Encoder.from_pretrained(finished_run).parameters()):,} parameters"
    for fact in (
        "# my-encoder",
        parameters,
        data["data"],
        data["corpus"],
        "12 of 12",
        "61.25 ± 0.50",
        "@article",
        "K = 12",
        "processes: 1,",
    ):
        assert fact in card
    assert "99.75" not in card
    refused(
        "no results of these weights", finished_run, tmp_path / "b", "--to", "hf", "--results", results.parent / "other"
    )
    export(finished_run, tmp_path / "c", "--to", "hf")
    card = (tmp_path / "c" / "README.md").read_text(encoding="utf-8")
    assert "None were available" in card
    assert 'license: "unknown"' in card


def test_names_in_the_model_card_are_text(finished_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished_run, tmp_path / "run")
    facts = json.loads((run / "run.json").read_text())
    hostile = "a|b <script>x</script> [d](javascript:e)\n---\n# heading"
    (run / "run.json").write_text(json.dumps(facts | {"data": hostile}))
    export(run, tmp_path / "card", "--to", "hf")
    card = (tmp_path / "card" / "README.md").read_text(encoding="utf-8")
    assert "<script" not in card
    assert "\n# heading" not in card
    assert r"a\|b &lt;script&gt;" in card
    assert r"\[d\](javascript:e)" in card


@torch.no_grad()
def test_onnxruntime_gives_the_encoders_states_at_any_length(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    export(finished_run, "--to", "onnx", tmp_path / "onnx")
    assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == ["Tracing", "Writing"]
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "encoder.onnx")
    assert [output.name for output in session.get_outputs()] == [f"hidden_state_{i}" for i in range(3)]
    encoder = Encoder.from_pretrained(finished_run)
    for batch, samples in ((1, 720), (1, 1_039), (4, 7_777), (1, 160_000)):
        waveforms = 0.1 * torch.randn(batch, samples)
        found = session.run(None, {"waveforms": waveforms.numpy()})
        for ours, theirs in zip(encoder(waveforms).hidden_states, found, strict=True):
            np.testing.assert_allclose(theirs, ours.numpy(), atol=1e-4)
    assert "differ from the encoder's by" in (tmp_path / "onnx" / "README.md").read_text(encoding="utf-8")


def test_weights_of_8_bits_give_nearly_the_encoders_states(finished_run: Path, tmp_path: Path) -> None:
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    export(finished_run, "--to", "onnx", "--int8", tmp_path / "int8")
    small = tmp_path / "int8" / "encoder.onnx"
    stored = onnx.load(small).graph.initializer
    eighths = sum(math.prod(t.dims) for t in stored if t.data_type in (onnx.TensorProto.INT8, onnx.TensorProto.UINT8))
    layers = Encoder.from_pretrained(finished_run).encoder.layers
    assert eighths >= sum(weight.numel() for weight in layers.parameters() if weight.dim() == 2)
    waveforms = 0.1 * torch.randn(2, 20_000, generator=torch.Generator().manual_seed(1))
    ours = Encoder.from_pretrained(finished_run)(waveforms).last.detach()
    (*_, theirs) = onnxruntime.InferenceSession(small).run(None, {"waveforms": waveforms.numpy()})
    assert (ours - torch.from_numpy(theirs)).square().mean() < 0.01 * ours.square().mean()
    assert "8-bit weights" in (tmp_path / "int8" / "README.md").read_text(encoding="utf-8")


@torch.no_grad()
def test_the_stated_error_of_8_bits_is_relative_to_the_last_hidden_state(finished_run: Path) -> None:
    encoder = Encoder.from_pretrained(finished_run)

    def run(_: None, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        *others, last = (state.numpy() for state in encoder(torch.from_numpy(inputs["waveforms"])).hidden_states)
        return [*others, 0.97 * last]

    assert relative_error(encoder, SimpleNamespace(run=run)) == pytest.approx(0.03, rel=1e-4)


@torch.no_grad()
def test_the_torch_program_gives_the_encoders_states_at_any_length(finished_run: Path, tmp_path: Path) -> None:
    export(finished_run, "--to", "torch", tmp_path / "torch")
    program = torch.export.load(tmp_path / "torch" / "encoder.pt2")
    assert not any("autocast" in str(node.target) for node in program.graph.nodes)
    encoder = Encoder.from_pretrained(finished_run)
    for batch, samples in ((1, 720), (3, 7_777), (1, 160_000)):
        waveforms = 0.1 * torch.randn(batch, samples)
        for ours, theirs in zip(encoder(waveforms).hidden_states, program.module()(waveforms), strict=True):
            torch.testing.assert_close(theirs, ours, atol=1e-4, rtol=0)


@torch.no_grad()
def test_plain_convolutions_equal_the_papers_encoder() -> None:
    encoder = Encoder().eval()
    waveforms = 0.1 * torch.randn(1, 20_000)
    for ours, theirs in zip(encoder(waveforms).hidden_states, PlainEncoder(encoder)(waveforms), strict=True):
        torch.testing.assert_close(theirs, ours, atol=1e-4, rtol=0)


def test_a_graph_that_computes_something_else_is_refused(finished_run: Path) -> None:
    encoder = Encoder.from_pretrained(finished_run)
    with pytest.raises(UserError, match="differs from the encoder by"):
        graphs.check_outputs(encoder, lambda waveforms: [state + 1e-3 for state in encoder(waveforms).hidden_states])


def test_what_exists_is_refused_and_force_leaves_other_files(finished_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    folder.mkdir()
    export(finished_run, "--to", "hf", folder)  # an empty folder will do
    (folder / "notes.txt").write_text("mine")
    card = (folder / "README.md").read_text(encoding="utf-8")
    done: subprocess.CompletedProcess[str] = sjepa("export", finished_run, "--to", "hf", folder)
    refused_call(done, "exists and is not empty", "--force")
    export(finished_run, "--to", "hf", folder, "--force", "--licence", "mit")
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "README.md").read_text(encoding="utf-8") != card
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export"]
    (tmp_path / "file").touch()
    refused("is a file", finished_run, "--to", "hf", tmp_path / "file")


def test_force_leaves_no_file_of_another_encoder(tmp_path: Path) -> None:
    folder = tmp_path / "export"
    export("english-compact", folder, "--to", "release")
    (folder / "encoder.onnx").touch()
    (folder / "notes.txt").touch()
    other = Encoder(EncoderConfig(hidden_size=32, layers=1, heads=2))
    other.save_pretrained(tmp_path / "other")
    export(tmp_path / "other", folder, "--to", "hf", "--force")
    weights = {"config.json", "model.safetensors", "preprocessor_config.json"}
    assert {path.name for path in folder.iterdir()} == weights | {"card.json", "README.md", "notes.txt"}
    assert fingerprint(Encoder.from_pretrained(folder)) == fingerprint(other)


def test_an_export_that_is_interrupted_while_it_replaces_another_leaves_no_mixture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old weights below the new licence would load without an error."""
    folder, move = tmp_path / "export", os.replace
    Encoder(EncoderConfig(hidden_size=32, layers=1, heads=2)).save_pretrained(tmp_path / "other")
    for stop in range(1, 5):
        export("english-compact", folder, "--to", "hf", "--force", "--licence", "mit")
        moved = []

        def interrupt(source: Path, target: Path, moved: list[Path] = moved, stop: int = stop) -> None:
            if Path(target).parent == folder:
                moved.append(target)
                if len(moved) == stop:
                    raise KeyboardInterrupt
            move(source, target)

        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", interrupt)
            with pytest.raises(KeyboardInterrupt):
                dispatch(["export", str(tmp_path / "other"), str(folder), "--to", "hf", "--force"])
        with pytest.raises(UserError):
            Encoder.from_pretrained(folder)


def test_an_encoder_that_is_exported_into_its_own_folder_keeps_its_files(tmp_path: Path) -> None:
    Encoder(EncoderConfig(hidden_size=32, layers=1, heads=2)).save_pretrained(tmp_path)
    (tmp_path / "SHA256SUMS").touch()
    for source in (tmp_path, tmp_path / "model.safetensors"):
        with new_folder(tmp_path, True, source) as partial:
            (partial / "encoder.onnx").touch()
        assert Encoder.from_pretrained(tmp_path).config.layers == 1
        assert (tmp_path / "encoder.onnx").exists()
        assert not (tmp_path / "SHA256SUMS").exists()


def test_a_run_that_lacks_a_file_is_refused_with_the_command_that_writes_it(finished_run: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    refused("there is no run .* `sjepa pretrain", tmp_path / "none", "--to", "hf", target)
    run = tmp_path / "run"
    run.mkdir()
    refused(r"it has no config\.toml", run, "--to", "hf", target)
    for name in ("config.toml", "run.json", "metrics.jsonl"):
        (run / name).write_bytes((finished_run / name).read_bytes())
    refused(r"has no encoder/model\.safetensors: .*`sjepa pretrain --out .* continues", run, "--to", "hf", target)
    assert not target.exists()


def front_and_body(folder: Path) -> tuple[str, str]:
    card = huggingface_hub.ModelCard.load(folder / "README.md")
    return card.data.license, card.text


def test_licence_credit_and_results_travel_with_an_encoder(tmp_path: Path) -> None:
    export("english-compact", tmp_path / "first", "--to", "hf")
    export(tmp_path / "first", tmp_path / "second", "--to", "hf")
    for folder in (tmp_path / "first", tmp_path / "second"):
        licence, text = front_and_body(folder)
        assert licence == "cc-by-4.0"
        assert "These weights: cc-by-4.0." in text
        assert "LibriSpeech dev-clean and parts of train-clean-100" in text
        assert "| speaker ↑ | 99.70 ± 0.17 |" in text
    export(tmp_path / "first", tmp_path / "other", "--to", "hf", "--licence", "mit", "--about", "Mine.")
    licence, text = front_and_body(tmp_path / "other")
    assert licence == "mit"
    assert "Mine." in text
    assert "train-clean-100" not in text


def test_results_from_before_rounding_say_so_once_also_in_later_exports(finished_run: Path, tmp_path: Path) -> None:
    export(finished_run, tmp_path / "full", "--to", "hf")
    CardFacts(results="| phones | 70 |").save(tmp_path / "full" / "card.json")
    export(tmp_path / "full", tmp_path / "half", "--to", "release")
    export(tmp_path / "half", tmp_path / "again", "--to", "hf")
    for folder in (tmp_path / "half", tmp_path / "again"):
        _, text = front_and_body(folder)
        assert "| phones | 70 |\n\nThe weights were rounded to fp16 after these measurements." in text
        assert text.count("measure") == 1


def test_the_card_names_the_licence_of_the_encoder_that_a_run_started_from(
    finished_run: Path, corpus: Path, tmp_path: Path, micro: Callable[..., Config]
) -> None:
    export(finished_run, tmp_path / "start", "--to", "hf", "--licence", "cc-by-nc-4.0")
    for start, run in (("start", "first"), ("first", "second")):
        config = micro(phase1={"steps": 1}, phase2={"steps": 1}, init_from=str(tmp_path / start))
        assert pretrain(config, corpus, tmp_path / run, show=False)
    shutil.rmtree(tmp_path / "start")
    export(tmp_path / "second", tmp_path / "out", "--to", "hf")
    licence, text = front_and_body(tmp_path / "out")
    assert licence == "unknown"
    assert "The encoder that training started from: cc-by-nc-4.0." in text


def test_the_card_of_an_unfinished_run_states_its_step(
    finished_run: Path, tmp_path: Path, micro: Callable[..., Config]
) -> None:
    run = tmp_path / "run-of-mine"
    branch(finished_run, run, micro(phase2={"steps": 90, "visible_loss_until": 2}))
    export(run, "--to", "hf", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| steps | 6 of 96 |" in card
    assert "targets: online-gmm, not reached yet |" in card
    assert load_upstream(str(run)).name == "run-of-mine-step-6"
    assert load_upstream(str(run / "encoder-phase1")).name == "run-of-mine-phase1"


def test_nothing_in_a_run_or_name_breaks_out_of_the_model_card(finished_run: Path, tmp_path: Path) -> None:
    hostile = "a|b <script>x</script> `c` [d](javascript:e)\n# heading"
    shutil.copytree(finished_run, tmp_path / "run")
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps(facts | {"data": hostile, "sjepa": hostile}))
    export(tmp_path / "run", tmp_path / "card", "--to", "hf", "--name", hostile, "--licence", hostile)
    card = (tmp_path / "card" / "README.md").read_text(encoding="utf-8")
    _, front, body = card.split("---\n", 2)
    assert len(front.splitlines()) == 4
    code = body.split("```python")[1].split("```")[0]
    assert "<script" not in body.replace(code, "").replace(body.split("```")[2].split("## Training")[0], "")
    assert "\n# heading" not in card
    compile(code, "card", "exec")
