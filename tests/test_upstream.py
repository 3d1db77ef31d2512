"""Frozen features: the same alone and in a batch, from our encoder, Hugging Face's, and the baselines."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import babble

from sjepa.audio.frames import frame_count
from sjepa.audio.mfcc import MfccConfig, mfcc
from sjepa.config import Config
from sjepa.embed.network import Network
from sjepa.errors import UserError
from sjepa.evaluate.superb.features import FeatureStore
from sjepa.evaluate.superb.records import Utterance
from sjepa.evaluate.upstream import load_upstream
from sjepa.export.plain import PlainEncoder
from sjepa.model.encoder_config import EncoderConfig
from sjepa.model.formats import fingerprint
from sjepa.model.moments import measure_moments
from sjepa.runs.encoder import Encoder
from sjepa.train.loop import pretrain
from sjepa.train.run import Run

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
CONVOLUTIONS = {"conv_dim": [16] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}


@pytest.fixture(scope="module")
def utterances() -> list[np.ndarray]:
    return [babble(seconds, seed) for seed, seconds in enumerate((1.0, 0.4, 1.7, 1.0))]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Our own encoder and tiny Hugging Face networks, as they lie on disk."""
    transformers = pytest.importorskip("transformers")
    root = tmp_path_factory.mktemp("encoders")
    torch.manual_seed(1)
    config = EncoderConfig(32, 2, 2, 64, conv_channels=16, position_kernel=16, position_groups=2)
    Encoder(config).save_pretrained(root / "run" / "encoder")
    normal = {"feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True}
    networks = {
        "hubert-large-like": transformers.HubertModel(transformers.HubertConfig(**SIZES, **CONVOLUTIONS, **normal)),
        "wavlm": transformers.WavLMModel(transformers.WavLMConfig(**SIZES, **CONVOLUTIONS)),
        "wav2vec2": transformers.Wav2Vec2Model(transformers.Wav2Vec2Config(**SIZES, **CONVOLUTIONS)),
    }
    for name, network in networks.items():
        network.save_pretrained(root / name)
    return {"ours": root / "run"} | {name: root / name for name in networks}


@pytest.mark.parametrize("name", ["ours", "hubert-large-like", "wavlm", "wav2vec2", "mfcc", "mfcc+context", "logmel"])
def test_features_do_not_depend_on_the_batch(name: str, folders: dict[str, Path], utterances: list[np.ndarray]) -> None:
    upstream = load_upstream(str(folders.get(name, name)))
    together = upstream.extract(utterances)
    for samples, state in zip(utterances, together, strict=True):
        assert state.shape == (upstream.states, frame_count(len(samples)), upstream.dimension)
        torch.testing.assert_close(upstream.extract([samples])[0], state, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["hubert-large-like", "wavlm", "wav2vec2"])
def test_hidden_states_are_those_of_transformers(
    name: str, folders: dict[str, Path], utterances: list[np.ndarray]
) -> None:
    import transformers

    upstream = load_upstream(str(folders[name]))
    network = transformers.AutoModel.from_pretrained(folders[name]).eval()
    samples = utterances[0]
    if name == "hubert-large-like":  # layer norm in the front end: waveforms are scaled, as its preprocessor would
        samples = (samples - samples.mean()) / np.sqrt(samples.var() + 1e-7)
    with torch.inference_mode():
        wanted = network(torch.from_numpy(samples)[None], output_hidden_states=True).hidden_states
    torch.testing.assert_close(upstream.extract([utterances[0]])[0], torch.cat(wanted), atol=1e-5, rtol=1e-4)
    assert upstream.parameters == sum(p.numel() for p in network.parameters())
    assert upstream.states == 3


def test_our_encoder_runs_hugging_faces_hubert_of_the_same_architecture(
    tmp_path: Path, utterances: list[np.ndarray]
) -> None:
    transformers = pytest.importorskip("transformers")
    network = transformers.HubertModel(transformers.HubertConfig(**SIZES, **CONVOLUTIONS)).eval()
    network.save_pretrained(tmp_path / "hubert")
    upstream = load_upstream(str(tmp_path / "hubert"))
    assert isinstance(upstream.network, Encoder)
    with torch.inference_mode():
        wanted = network(torch.from_numpy(utterances[0])[None], output_hidden_states=True).hidden_states
    torch.testing.assert_close(upstream.extract(utterances)[0], torch.cat(wanted), atol=1e-3, rtol=1e-3)


def test_untrained_weights_are_fresh_and_always_the_same(folders: dict[str, Path]) -> None:
    for name in ("ours", "wavlm"):
        trained = load_upstream(str(folders[name]))
        fresh, again = (load_upstream(f"untrained:{folders[name]}") for _ in range(2))
        assert fresh.fingerprint == again.fingerprint != trained.fingerprint
        assert fresh.parameters == trained.parameters
        assert fresh.name.startswith("untrained ")


def test_the_untrained_encoder_of_a_run_is_where_that_run_started(
    corpus: Path, tmp_path: Path, micro: Callable[..., Config]
) -> None:
    config = micro(encoder={"attention_start": 1.0}, phase1={"steps": 1}, phase2={"steps": 1})
    assert pretrain(config, corpus, tmp_path / "run", show=False)
    untrained = load_upstream(f"untrained:{tmp_path / 'run'}")
    start = Run.start(config, torch.device("cpu")).model.encoder
    assert untrained.fingerprint == fingerprint(start)
    attention = start.encoder.layers[0].attention
    assert torch.equal(attention.q_proj.weight, attention.k_proj.weight)


def test_context_puts_eleven_frames_side_by_side(utterances: list[np.ndarray]) -> None:
    plain, wide = (load_upstream(name).extract(utterances[:1])[0][0] for name in ("mfcc", "mfcc+context"))
    assert wide.shape[1] == 11 * plain.shape[1] == 429
    frames = torch.arange(len(plain))
    for offset in range(-5, 6):
        neighbours = plain[(frames + offset).clamp(0, len(plain) - 1)]
        torch.testing.assert_close(wide[:, 39 * (offset + 5) : 39 * (offset + 6)], neighbours)


def test_the_mfcc_floor_is_mfcc_up_to_scale(utterances: list[np.ndarray]) -> None:
    baseline = load_upstream("mfcc").extract(utterances[:1])[0][0]
    raw = mfcc(torch.from_numpy(utterances[0])[None], MfccConfig())[0]
    correlation = np.corrcoef(baseline[:, 3].numpy(), raw[:, 3].numpy())[0, 1]
    assert correlation == pytest.approx(1.0, abs=1e-6)


def test_the_cache_is_bounded_and_changes_nothing(corpus: Path, folders: dict[str, Path]) -> None:
    upstream = load_upstream(str(folders["ours"]))
    utterances = [Utterance(path.stem, path, "") for path in sorted(corpus.glob("*.wav"))[:6]]
    frame = upstream.states * upstream.dimension * 4
    without, small, large = (FeatureStore(upstream, size) for size in (0.0, 120 * frame / 2**30, 1.0))
    plan = [(utterances[:3], 0), (utterances[3:], 1), (utterances[:3], 2)]
    results = [[state for _, batch in store.batches(plan) for state in batch] for store in (without, small, large)]
    for states in zip(*results, strict=True):
        for state in states[1:]:
            torch.testing.assert_close(state, states[0])
    assert len(without.cache) == 0
    assert 0 < len(small.cache) < len(large.cache) == 6
    assert sum(s.numel() * 4 for s in small.cache.values()) <= 120 * frame
    assert large.audio_seconds < without.audio_seconds
    assert large.speed > 0


def test_random_crops_are_seeded_and_are_not_cached(corpus: Path) -> None:
    path = min(corpus.glob("*.wav"))
    utterance = Utterance("x", path, "", crop=8000)
    store = FeatureStore(load_upstream("logmel"))
    first, again, other, middle = (next(store.batches([([utterance], seed)]))[1][0] for seed in (0, 0, 1, -1))
    assert first.shape[1] == frame_count(8000)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, middle)
    assert not store.cache


def test_what_is_no_encoder_is_refused_in_one_line(tmp_path: Path, folders: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="there is no encoder nowhere"):
        load_upstream("nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"neither config\.json nor encoder/config\.json"):
        load_upstream(str(tmp_path / "empty"))
    (tmp_path / "empty" / "run").mkdir()
    (tmp_path / "empty" / "run" / "config.toml").touch()
    with pytest.raises(UserError, match=r"did you mean .*empty/run"):
        load_upstream(str(tmp_path / "empty"))
    (tmp_path / "empty" / "another").mkdir()
    (tmp_path / "empty" / "another" / "config.toml").touch()
    with pytest.raises(UserError, match=r"; it holds 2 runs: give one of them, such as .*empty/another"):
        load_upstream(str(tmp_path / "empty"))
    other = tmp_path / "bert"
    other.mkdir()
    (other / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(UserError, match="has a network of type 'bert'; supported are sjepa's own, and Hugging Face"):
        load_upstream(str(other))
    (other / "config.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        load_upstream(str(other))
    hollow = tmp_path / "wavlm"
    hollow.mkdir()
    (hollow / "config.json").write_text((folders["wavlm"] / "config.json").read_text())
    with pytest.raises(UserError, match="cannot be loaded") as refusal:
        load_upstream(str(hollow))
    assert "\n" not in str(refusal.value)
    with pytest.raises(UserError, match="100 samples are too few"):
        load_upstream("mfcc").extract([np.zeros(100, np.float32)])


@pytest.mark.parametrize("name", ["ours", "hubert-large-like", "wavlm"])
def test_features_are_fp32_unless_bf16_is_requested(
    name: str, folders: dict[str, Path], utterances: list[np.ndarray]
) -> None:
    exact = load_upstream(str(folders[name]))
    short = load_upstream(str(folders[name]), precision="bf16")
    assert (exact.precision, short.precision) == ("fp32", "bf16")
    with torch.backends.mkldnn.flags(enabled=False):  # without bf16 on the CPU, mkldnn would fail and stay off
        found = short.extract(utterances[:2])
    for a, b in zip(exact.extract(utterances[:2]), found, strict=True):
        assert (a.dtype, b.dtype) == (torch.float32, torch.bfloat16)
        difference = float((a - b.float()).abs().mean())
        assert 1e-4 < difference < 0.05
    assert load_upstream("logmel", precision="bf16").precision == "fp32"


def test_one_checkpoint_gives_the_same_features_in_either_file_format(
    tmp_path: Path, utterances: list[np.ndarray]
) -> None:
    """HuBERT Base runs in our encoder with model.safetensors, and in transformers with pytorch_model.bin."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    network = transformers.HubertModel(transformers.HubertConfig(**SIZES, **CONVOLUTIONS)).eval()
    quiet = [0.01 * samples + 0.005 for samples in utterances]
    found = {}
    for normalize in (True, False, None):
        for kind in ("safetensors", "bin"):
            folder = tmp_path / f"{kind}-{normalize}"
            network.save_pretrained(folder)
            if kind == "bin":
                (folder / "model.safetensors").unlink()
                torch.save(network.state_dict(), folder / "pytorch_model.bin")
            if normalize is not None:
                (folder / "preprocessor_config.json").write_text(json.dumps({"do_normalize": normalize}))
            found[normalize, kind] = load_upstream(str(folder)).extract(quiet)
        for ours, theirs in zip(found[normalize, "safetensors"], found[normalize, "bin"], strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)
    assert not torch.allclose(found[True, "bin"][0], found[False, "bin"][0], atol=1e-2)
    extractor = transformers.Wav2Vec2FeatureExtractor(do_normalize=True)
    inputs = torch.tensor(np.array(extractor(quiet[0], sampling_rate=16_000)["input_values"]))
    with torch.no_grad():
        wanted = network(inputs, output_hidden_states=True).hidden_states
    torch.testing.assert_close(found[True, "safetensors"][0], torch.cat(wanted), atol=1e-3, rtol=1e-3)


@pytest.fixture
def normalizing(tmp_path: Path) -> Path:
    """A HuBERT whose feature extractor normalises waveforms, as Hugging Face stores them."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    network = transformers.HubertModel(transformers.HubertConfig(**SIZES, **CONVOLUTIONS)).eval()
    network.save_pretrained(tmp_path / "hubert")
    transformers.Wav2Vec2FeatureExtractor(do_normalize=True, return_attention_mask=True).save_pretrained(
        tmp_path / "hubert"
    )
    return tmp_path / "hubert"


@torch.no_grad()
def test_every_way_to_use_an_encoder_normalises_waveforms_as_transformers_does(
    normalizing: Path, utterances: list[np.ndarray]
) -> None:
    transformers = pytest.importorskip("transformers")
    quiet = [0.003 * samples + 0.005 for samples in utterances]
    theirs = transformers.AutoModel.from_pretrained(normalizing).eval()
    extractor = transformers.AutoFeatureExtractor.from_pretrained(normalizing)
    wanted = []
    for samples in quiet:
        inputs = extractor(samples, sampling_rate=16_000, return_tensors="pt")
        wanted.append(theirs(inputs["input_values"]).last_hidden_state[0])
        plain = theirs(torch.from_numpy(samples)[None]).last_hidden_state[0]
        assert (plain - wanted[-1]).abs().max() > 0.1  # it matters
    encoder = Encoder.from_pretrained(normalizing)
    lengths = torch.tensor([len(samples) for samples in quiet])
    padded = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(samples) for samples in quiet], batch_first=True)
    batch = encoder(padded, lengths).last
    embedded = Network(encoder, (2,), torch.device("cpu")).features(quiet)
    evaluated = load_upstream(str(normalizing)).extract(quiet)
    for index, states in enumerate(wanted):
        torch.testing.assert_close(batch[index, : len(states)], states, atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(embedded[index], states, atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(evaluated[index][-1], states, atol=1e-3, rtol=1e-3)
        exported = PlainEncoder(encoder)(torch.from_numpy(quiet[index])[None])[-1][0]
        torch.testing.assert_close(exported, states, atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_a_window_is_normalised_like_its_recording(normalizing: Path) -> None:
    encoder = Encoder.from_pretrained(normalizing)
    samples = np.concatenate([0.003 * babble(2.0, 0), 0.0003 * babble(2.0, 1)])
    whole = encoder.convolve(torch.from_numpy(samples)[None])[0]
    window = torch.from_numpy(samples[320 * 120 : 320 * 120 + 400 + 320 * 59])[None]
    inside = encoder.convolve(window, moments=measure_moments([samples]))[0]
    torch.testing.assert_close(inside, whole[120:180], atol=1e-4, rtol=1e-3)


def test_a_saved_encoder_keeps_whether_it_normalises_waveforms(normalizing: Path, tmp_path: Path) -> None:
    Encoder.from_pretrained(normalizing).save_pretrained(tmp_path / "again")
    assert Encoder.from_pretrained(tmp_path / "again").feature_extractor.normalizes_waveforms
    plain = Encoder(EncoderConfig(32, 2, 2, 64, conv_channels=16, position_kernel=16, position_groups=2))
    plain.save_pretrained(tmp_path / "plain")
    assert json.loads((tmp_path / "plain" / "preprocessor_config.json").read_text())["do_normalize"] is False
    assert not Encoder.from_pretrained(tmp_path / "plain").feature_extractor.normalizes_waveforms
