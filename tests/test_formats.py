"""Weights of other programs, compared with the outputs of those programs."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
import transformers
from torch import Tensor

from sjepa import Encoder, EncoderConfig, UserError
from sjepa.evaluate.upstream import find_upstream_folder
from sjepa.model.foreign import infer_config_fields, rename_weights
from sjepa.model.formats import read_encoder, to_hugging_face
from sjepa.runs.locate import find_encoder

# Small networks of fairseq's own code (as s3prl carries it) and of torchaudio 2.8, with a waveform and what they made
# of it; norms and biases are not at their initial values.
DATA = Path(__file__).parent / "data"
WAVEFORM, OUTPUT = "the waveform", "the output"


def golden(family: str) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    tensors = safetensors.torch.load_file(DATA / f"hubert-{family}.safetensors")
    waveform, output = tensors.pop(WAVEFORM).float(), tensors.pop(OUTPUT)
    return tensors, waveform, output


def legacy(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    spellings = (("parametrizations.weight.original0", "weight_g"), ("parametrizations.weight.original1", "weight_v"))
    for new, old in spellings:
        weights = {name.replace(new, old): tensor for name, tensor in weights.items()}
    return weights


def modern(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    spellings = (("weight_g", "parametrizations.weight.original0"), ("weight_v", "parametrizations.weight.original1"))
    for old, new in spellings:
        weights = {name.replace(old, new): tensor for name, tensor in weights.items()}
    return weights


@pytest.mark.parametrize("family", ["fairseq", "torchaudio"])
@pytest.mark.parametrize("spelling", [legacy, modern])
@pytest.mark.parametrize("container", ["safetensors", "pt", "nested"])
def test_a_state_dict_of_another_program_gives_that_programs_outputs(
    family: str, spelling: object, container: str, tmp_path: Path
) -> None:
    weights, waveform, output = golden(family)
    weights = spelling(weights)  # type: ignore[operator]
    path = tmp_path / f"weights.{container}"
    if container == "safetensors":
        safetensors.torch.save_file(weights, path)
    else:
        torch.save({"model": weights, "epoch": 3} if container == "nested" else weights, path)
    encoder = Encoder.from_pretrained(path)
    assert encoder.config == EncoderConfig(64, 2, 1, 48, 8, 16, 4)
    with torch.no_grad():
        torch.testing.assert_close(encoder(waveform).last, output, rtol=1e-4, atol=2e-5)


def small_hubert(**changes: object) -> transformers.HubertConfig:
    sizes = {"hidden_size": 64, "num_hidden_layers": 12, "num_attention_heads": 4, "intermediate_size": 96}
    convolutions = {"conv_dim": (16,) * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
    return transformers.HubertConfig(**(sizes | convolutions | changes))


@torch.no_grad()
def test_a_hugging_face_folder_with_a_task_head_gives_its_encoder(tmp_path: Path) -> None:
    model = transformers.HubertForCTC(small_hubert(vocab_size=11)).eval()
    model.save_pretrained(tmp_path)
    encoder = Encoder.from_pretrained(tmp_path)
    assert (encoder.config.layers, encoder.config.heads) == (12, 4)
    waveform = torch.randn(1, 5_000)
    torch.testing.assert_close(encoder(waveform).last, model.hubert(waveform).last_hidden_state, rtol=1e-3, atol=1e-4)
    again = Encoder.from_pretrained(tmp_path / "model.safetensors")  # its config lies beside it
    assert again.config == encoder.config


@torch.no_grad()
def test_a_folder_with_a_torch_file_loads_as_released_models_lie(tmp_path: Path) -> None:
    model = transformers.HubertModel(small_hubert()).eval()
    model.config.save_pretrained(tmp_path)
    torch.save(legacy(model.state_dict()), tmp_path / "pytorch_model.bin")
    waveform = torch.randn(1, 5_000)
    ours = Encoder.from_pretrained(tmp_path)(waveform).last
    torch.testing.assert_close(ours, model(waveform).last_hidden_state, rtol=1e-3, atol=1e-4)


def test_the_sizes_of_a_released_hubert_base_are_read_from_its_weights() -> None:
    with torch.device("meta"):
        model = transformers.HubertModel(transformers.HubertConfig())
    weights = rename_weights(dict(model.state_dict()), "base")
    fields = infer_config_fields(weights, "base")
    assert EncoderConfig(**fields) == EncoderConfig(layers=12)
    with torch.device("meta"):
        assert Encoder(EncoderConfig(**fields)).state_dict().keys() == weights.keys()


def test_a_run_loads_as_its_encoder_and_one_without_names_the_command(tmp_path: Path) -> None:
    run = tmp_path / "a run – ünï"
    (run / "encoder").mkdir(parents=True)
    (run / "config.toml").touch()
    with pytest.raises(UserError, match=r"sjepa pretrain --out .* continues it"):
        find_encoder(run / "encoder" / "..")
    small = EncoderConfig(32, 2, 2, 64, conv_channels=16, position_kernel=16, position_groups=2)
    Encoder(small).save_pretrained(run / "encoder")
    weights, config = read_encoder(find_encoder(run))
    assert config.layers == 2
    assert weights.keys() == Encoder(small).state_dict().keys()


def test_a_file_of_weights_beside_a_config_of_another_size_is_refused_before_the_network_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = EncoderConfig(32, 2, 2, 64, conv_channels=16, position_kernel=16, position_groups=2)
    Encoder(small).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(to_hugging_face(replace(small, inner_size=128))))
    monkeypatch.setattr(Encoder, "__init__", None)
    with pytest.raises(UserError, match=r"config\.json has inner_size 128, the weights have 64"):
        Encoder.from_pretrained(tmp_path / "model.safetensors")


def test_a_folder_that_is_an_encoder_comes_before_one_inside_it(tmp_path: Path) -> None:
    small = EncoderConfig(32, 2, 2, 64, conv_channels=16, position_kernel=16, position_groups=2)
    for folder in (tmp_path, tmp_path / "encoder"):
        Encoder(small).save_pretrained(folder)
    assert find_encoder(tmp_path) == find_upstream_folder(tmp_path) == tmp_path


class Surprise:
    """Content of an untrusted pickle."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("code of a stranger runs",))


def test_pickled_objects_never_run_and_the_error_points_to_the_workaround(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, _, _ = golden("fairseq")
    for name, extra in (("fairseq", argparse.Namespace(arch="hubert")), ("evil", Surprise())):
        torch.save({"model": weights, "args": extra}, tmp_path / f"{name}.pt")
        with pytest.raises(UserError, match=r"holds pickled objects .*docs/use\.md"):
            Encoder.from_pretrained(tmp_path / f"{name}.pt")
    assert "stranger" not in capsys.readouterr().out


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    weights, _, _ = golden("fairseq")

    def refused(changed: dict[str, Tensor], words: str) -> None:
        torch.save(changed, tmp_path / "weights.pt")
        with pytest.raises(UserError, match=words) as refusal:
            Encoder.from_pretrained(tmp_path / "weights.pt")
        assert "weights.pt" in str(refusal.value)

    refused(weights | {"quantizer.vars": torch.ones(1)}, r"unknown quantizer\.vars")
    bias = "feature_extractor.conv_layers.1.0.bias"  # a network with biases there is another network
    refused(weights | {bias: torch.ones(8)}, r"unknown feature_extractor\.conv_layers\.1\.conv\.bias")
    without = {name: tensor for name, tensor in weights.items() if "layers.1.fc2" not in name}
    refused(without, r"missing encoder\.layers\.1\.feed_forward\.output_dense\.bias")
    wrong = "encoder.layers.1.fc1.weight"
    refused(weights | {wrong: torch.ones(47, 64)}, "of another size: encoder.layers.1.feed_forward")
    refused({"bert.weight": torch.ones(1)}, r"not a HuBERT encoder of .* the first are bert\.weight")
    narrow = {name: tensor[..., :48] for name, tensor in weights.items() if "post_extract" not in name}
    refused(narrow | {"post_extract_proj.weight": torch.ones(48, 8)}, "the head size 64")
    refused({}, "holds no weights")
    for text in (b"", b"these are words", b"{" * 9):
        (tmp_path / "weights.pt").write_bytes(text)
        with pytest.raises(UserError, match=r"weights\.pt"):
            Encoder.from_pretrained(tmp_path / "weights.pt")
    with pytest.raises(UserError, match="there is no encoder"):
        Encoder.from_pretrained(tmp_path / "nowhere")
