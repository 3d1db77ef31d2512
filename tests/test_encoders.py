"""Other encoders: Whisper, more of Hugging Face, s3prl and a user's function, with frames at any spacing."""

import importlib
import json
import re
import shutil
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from conftest import babble

from sjepa.cli import dispatch
from sjepa.errors import UserError
from sjepa.evaluate.adapters import AdaptedNetwork
from sjepa.evaluate.labelled import LabelledUtterance
from sjepa.evaluate.superb.records import Utterance
from sjepa.evaluate.upstream import describe_encoder, frame_geometry, load_upstream

transformers = pytest.importorskip("transformers")
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
CONVOLUTIONS = {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}
DOCUMENT = Path(__file__).parent.parent / "docs" / "evaluate.md"


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        d_model=64,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=256,
        decoder_layers=1,
        decoder_attention_heads=4,
        decoder_ffn_dim=64,
        vocab_size=50,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    folder = tmp_path_factory.mktemp("whisper")
    transformers.WhisperModel(config).save_pretrained(folder)
    return folder


def test_whispers_encoder_is_that_of_transformers(whisper: Path) -> None:
    upstream = load_upstream(str(whisper))
    network = transformers.WhisperModel.from_pretrained(whisper).eval().encoder
    samples = babble(1.01, 0)
    inputs = transformers.WhisperFeatureExtractor()(samples, sampling_rate=16_000, return_tensors="pt").input_features
    with torch.inference_mode():
        wanted = torch.cat(network(inputs, output_hidden_states=True).hidden_states)
    found = upstream.extract([samples])[0]
    assert found.shape == (upstream.states, 51, 64)
    torch.testing.assert_close(found, wanted[:, :51], atol=2e-4, rtol=1e-3)
    assert upstream.frame_centres(3).tolist() == [0.0, 0.02, 0.04]
    trained = sum(p.numel() for n, p in network.named_parameters() if "embed_positions" not in n)
    assert upstream.parameters == trained  # positions are fixed


def test_whispers_features_do_not_depend_on_the_batch_and_long_audio_is_cut(whisper: Path) -> None:
    upstream = load_upstream(str(whisper))
    short, long = babble(0.5, 1), babble(31.0, 2)
    together = upstream.extract([short, long])
    torch.testing.assert_close(upstream.extract([short])[0], together[0], atol=2e-5, rtol=1e-4)
    assert together[1].shape[1] == 1550
    torch.testing.assert_close(upstream.extract([long[480_000:]])[0], together[1][:, 1500:], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("heads", "words"),
    [("4", "a whole number"), (0, "0 attention heads do not divide"), (3, "3 attention heads do not")],
)
def test_a_damaged_config_of_whisper_is_refused(whisper: Path, tmp_path: Path, heads: object, words: str) -> None:
    shutil.copytree(whisper, tmp_path / "whisper")
    file = tmp_path / "whisper" / "config.json"
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"encoder_attention_heads": heads, "num_mel_bins": 10**9})
    )
    for source in (str(file.parent), f"untrained:{file.parent}"):
        with pytest.raises(UserError, match=words):
            load_upstream(source)


def test_openais_weights_give_the_same_features(whisper: Path, tmp_path: Path) -> None:
    upstream = load_upstream(str(whisper))
    assert upstream.network is not None
    weights = dict(upstream.network.state_dict())
    # Heads of OpenAI's networks are 64 wide; a network with one head is read back as it was.
    upstream.network.blocks[0].attn.heads = upstream.network.blocks[1].attn.heads = 1  # type: ignore[index, union-attr]
    safetensors.torch.save_file(weights, tmp_path / "encoder.safetensors")
    again = load_upstream(str(tmp_path))
    samples = babble(0.4, 3)
    torch.testing.assert_close(again.extract([samples])[0], upstream.extract([samples])[0], atol=1e-5, rtol=1e-4)
    assert load_upstream(f"untrained:{tmp_path}").fingerprint != again.fingerprint
    for name in ("positional_embedding", "conv1.weight"):
        del weights[name]
        safetensors.torch.save_file(weights, tmp_path / "encoder.safetensors")
        for source in (str(tmp_path), f"untrained:{tmp_path}"):
            with pytest.raises(UserError, match=rf"not weights of Whisper's encoder: {name} is missing"):
                load_upstream(source)


@pytest.mark.parametrize("kind", ["Data2VecAudio", "UniSpeech", "UniSpeechSat"])
def test_more_of_hugging_face_gives_its_hidden_states(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = SIZES | ({} if kind == "Data2VecAudio" else CONVOLUTIONS)
    config = getattr(transformers, f"{kind}Config")(**sizes, conv_dim=[16] * 7)
    network = getattr(transformers, f"{kind}Model")(config).eval()
    network.save_pretrained(tmp_path)
    upstream = load_upstream(str(tmp_path))
    samples = babble(0.5, 0)
    with torch.inference_mode():
        wanted = network(torch.from_numpy(samples)[None], output_hidden_states=True).hidden_states
    torch.testing.assert_close(upstream.extract([samples])[0], torch.cat(wanted), atol=1e-5, rtol=1e-4)
    assert (upstream.stride, upstream.centre) == (320, 200)


def test_other_strides_are_known_from_the_convolutions(tmp_path: Path) -> None:
    assert frame_geometry((10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2)) == (320, 400)
    shape = {"conv_dim": [16] * 6, "conv_kernel": [10, 3, 3, 3, 3, 2], "conv_stride": [5, 2, 2, 2, 2, 2]}
    config = transformers.WavLMConfig(**SIZES, **CONVOLUTIONS, **shape)
    transformers.WavLMModel(config).save_pretrained(tmp_path)
    upstream = load_upstream(str(tmp_path))
    assert (upstream.stride, upstream.centre) == (160, 120)
    frames = upstream.extract([babble(1.0, 0)])[0].shape[1]
    assert abs(frames - upstream.frame_count(16_000)) <= 2


def test_a_frame_has_the_label_at_its_centre_at_any_spacing() -> None:
    utterance = Utterance("x", Path("x.wav"), "")
    by_hundred = LabelledUtterance(utterance, phones=list("aabbccdd"))
    by_segment = LabelledUtterance(
        utterance, segments=[(0.0, 0.02, "a"), (0.02, 0.04, "b"), (0.04, 0.06, "c"), (0.06, 0.08, "d")]
    )
    centres = np.array([0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07]) + 0.002
    for labelled in (by_hundred, by_segment):
        assert "".join(labelled.frame_phones(8, centres)) == "aabbccdd"
        assert "".join(labelled.frame_phones(4)) == "abcd"


@pytest.fixture
def adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The ten lines of the documentation, in the working folder."""
    code = re.search(r"```python\n(# my_encoder\.py.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert code
    assert len([line for line in code[1].splitlines() if line.strip() and not line.startswith("#")]) <= 10
    (tmp_path / "my_encoder.py").write_text(code[1], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_encoder", raising=False)
    return "my_encoder:MyEncoder"


def test_the_documented_adapter_runs(adapter: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    upstream = load_upstream(adapter)
    assert (upstream.name, upstream.states, upstream.dimension) == ("my_encoder-MyEncoder", 1, 64)
    assert (upstream.stride, upstream.centre, upstream.parameters) == (160, 200, 400 * 64 + 64)
    alone, together = babble(0.5, 0), babble(0.7, 1)
    found = upstream.extract([alone, together])
    torch.testing.assert_close(upstream.extract([alone])[0], found[0])
    pytest.importorskip("sklearn")
    import soundfile

    rows = ""
    for number in range(10):
        soundfile.write(tmp_path / f"{number}.wav", babble(0.5, number), 16_000)
        phones = f'[[0.0, 0.25, "{"ab"[number % 2]}"], [0.25, 0.5, "c"]]'
        rows += f'{{"path": "{number}.wav", "speaker": "s{number % 3}", "phones": {phones}}}\n'
    (tmp_path / "labels.jsonl").write_text(rows)
    dispatch(["probe", "--encoder", adapter, "--data", str(tmp_path), "--out", str(tmp_path / "out")])
    assert "my_encoder-MyEncoder (25,664 parameters)" in capsys.readouterr().out


def test_functions_that_are_no_encoders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import torch\ndef number(): return 3\ndef flat(): return lambda waves: [waves]\n"
    code += "def broken(): return lambda waves: 1 / 0\n"
    code += "def slow(): return lambda waves: [waves.unfold(1, 400, 40_000)]\n"
    (tmp_path / "odd_encoders.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, message in [
        ("number", "returns int, which is not callable"),
        ("flat", r"have the shapes \(1, 16000\); each should be \(1, frames, width\)"),
        ("broken", r"the network fails on 1 s of noise \(division by zero\)"),
        ("missing", "cannot be loaded"),
        ("slow", "less than one frame per second; set its `stride`"),
    ]:
        with pytest.raises(UserError, match=message):
            load_upstream(f"odd_encoders:{name}")
    with pytest.raises(UserError, match=r"cannot be loaded .*No module named 'no_such_module'"):
        load_upstream("no_such_module:load")


@pytest.mark.parametrize("hop", [160, 200, 213, 320, 960, 1280])
def test_the_frame_spacing_of_a_function_is_measured_exactly(hop: int) -> None:
    measured = AdaptedNetwork("a:b", lambda waves: [waves.unfold(1, 400, hop)], None, None, None)
    assert (measured.stride, measured.centre) == (hop, hop / 2)


def test_a_change_of_a_functions_code_or_of_normalisation_is_another_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished_run: Path
) -> None:
    """Otherwise, an evaluation would show the results of the code or settings before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    descriptions = []
    for width in (400, 800):
        Path("changing.py").write_text(f"def make():\n    return lambda x: [x.unfold(1, {width}, 320)[..., :9]]\n")
        descriptions.append(describe_encoder(load_upstream("changing:make")))
        del sys.modules["changing"]
        importlib.invalidate_caches()
    assert descriptions[0].keys() == descriptions[1].keys()
    assert {k for k in descriptions[0] if descriptions[0][k] != descriptions[1][k]} == {"settings"}
    copy = shutil.copytree(finished_run / "encoder", tmp_path / "encoder")
    plain = describe_encoder(load_upstream(str(copy)))
    settings = json.loads((copy / "preprocessor_config.json").read_text())
    (copy / "preprocessor_config.json").write_text(json.dumps(settings | {"do_normalize": True}))
    normalised = describe_encoder(load_upstream(str(copy)))
    assert {k for k in plain if plain[k] != normalised[k]} == {"settings"}


class FakeUpstream(torch.nn.Module):
    """s3prl's interface."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(320, 8)

    def get_downsample_rates(self, key: str) -> int:
        assert key == "hidden_states"
        return 320

    def forward(self, wavs: list[torch.Tensor]) -> dict[str, list[torch.Tensor]]:
        x = self.layer(torch.stack(wavs).unfold(1, 320, 320))
        return {"hidden_states": [x, 2 * x]}


def test_upstreams_of_s3prl_are_taken_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = types.ModuleType("s3prl.hub")
    hub.fake = FakeUpstream  # type: ignore[attr-defined]
    package = types.ModuleType("s3prl")
    package.hub = hub  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "s3prl", package)
    monkeypatch.setitem(sys.modules, "s3prl.hub", hub)
    upstream = load_upstream("s3prl:fake")
    assert (upstream.name, upstream.states, upstream.stride) == ("s3prl-fake", 2, 320)
    assert upstream.extract([babble(0.5, 0)])[0].shape == (2, 25, 8)
    with pytest.raises(UserError, match="s3prl has no upstream 'none'"):
        load_upstream("s3prl:none")
    monkeypatch.setitem(sys.modules, "s3prl", None)
    monkeypatch.setitem(sys.modules, "s3prl.hub", None)
    with pytest.raises(UserError, match="--encoder s3prl:fake needs s3prl: pip install s3prl"):
        load_upstream("s3prl:fake")
