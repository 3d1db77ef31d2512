"""The encoder against Hugging Face's, and against itself in a padded batch."""

import copy
import json
from pathlib import Path

import pytest
import torch
import transformers
from conftest import NO_DROPOUT

from sjepa import Encoder, EncoderConfig, UserError
from sjepa.audio.frames import frame_count
from sjepa.model.activation import ShortGelu
from sjepa.model.formats import fingerprint, to_hugging_face
from sjepa.model.frontend import convolve_stride2

SMALL = EncoderConfig(
    hidden_size=64, layers=3, heads=4, inner_size=128, conv_channels=32, position_kernel=32, position_groups=4
)


def hugging_face(encoder: Encoder, folder: Path) -> transformers.HubertModel:
    encoder.save_pretrained(folder)
    return transformers.HubertModel.from_pretrained(folder).eval()


def largest_difference(ours: list[torch.Tensor], theirs: tuple[torch.Tensor, ...]) -> float:
    assert len(ours) == len(theirs)
    return max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("taps", [2, 3])
@pytest.mark.parametrize("rows", [3, 4, 5, 6, 7, 8, 9, 64, 127])
def test_halving_rows_is_a_convolution_with_stride_2(rows: int, taps: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(rows, 16), torch.randn(24, 16, taps)
    wanted = torch.nn.functional.conv1d(x.double().t(), weight.double(), stride=2).t()
    by_tap = weight.permute(2, 1, 0).contiguous()
    with_gradients = convolve_stride2(x, by_tap)
    with torch.inference_mode():
        without = convolve_stride2(x.clone(), by_tap)
    for ours in (with_gradients, without):
        torch.testing.assert_close(ours.double(), wanted, atol=3e-5, rtol=0)


def test_the_papers_encoder_has_51_843_712_parameters() -> None:
    assert sum(p.numel() for p in Encoder(EncoderConfig()).parameters()) == 51_843_712


@pytest.mark.parametrize("config", [EncoderConfig(), SMALL], ids=["paper", "small"])
def test_matrix_weights_are_counted_without_building_them(config: EncoderConfig) -> None:
    with torch.device("meta"):
        tensors = Encoder(config).state_dict()
    gains = tensors.pop("encoder.pos_conv_embed.conv.parametrizations.weight.original0")
    assert gains.numel() == config.position_kernel  # a weight norm, not a matrix
    assert config.count_matrix_weights() == sum(tensor.numel() for tensor in tensors.values() if tensor.dim() > 1)


@torch.no_grad()
def test_the_papers_encoder_equals_hugging_face_at_every_layer(tmp_path: Path) -> None:
    encoder = Encoder().eval()
    model = hugging_face(encoder, tmp_path)
    for samples in (400, 16_123, 48_000):
        waveforms = 0.1 * torch.randn(2, samples) + 0.05
        theirs = model(waveforms, output_hidden_states=True).hidden_states
        assert largest_difference(encoder(waveforms).hidden_states, theirs) <= 1e-4


@torch.no_grad()
def test_every_length_equals_hugging_face(tmp_path: Path) -> None:
    encoder = Encoder(SMALL).eval()
    model = hugging_face(encoder, tmp_path)
    for samples in [*range(400, 1400, 37), 719, 720, 721, 5_000, 16_319]:
        waveforms = torch.randn(1, samples)
        theirs = model(waveforms, output_hidden_states=True).hidden_states
        assert theirs[0].shape[1] == frame_count(samples)
        assert largest_difference(encoder(waveforms).hidden_states, theirs) <= 1e-4


def test_the_front_end_in_pieces_equals_the_whole() -> None:
    extractor = Encoder(SMALL).feature_extractor
    for batch, samples, lengths in (
        (1, 100_000, None),
        (9, 33_333, None),
        (8, 25_000, torch.arange(8) * 3_000 + 3_000),
    ):
        waveforms = torch.randn(batch, samples)
        whole = extractor(waveforms, lengths)  # in one, because gradients are wanted
        with torch.no_grad():
            torch.testing.assert_close(extractor(waveforms, lengths), whole.detach(), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_bf16_on_a_cpu_stays_within_its_rounding() -> None:
    encoder, waveforms = Encoder(SMALL).eval(), 0.1 * torch.randn(2, 16_000)
    expected = encoder(waveforms).last
    # Where a CPU has no bf16, torch turns oneDNN off, which would round fp32 otherwise in all tests that follow.
    with torch.backends.mkldnn.flags(enabled=True), torch.autocast("cpu", torch.bfloat16):
        found = encoder(waveforms).last.float()
    assert (found - expected).norm() < 0.02 * expected.norm()


@torch.no_grad()
def test_weights_move_from_hugging_face_to_us(tmp_path: Path) -> None:
    config = transformers.HubertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, conv_dim=(32,) * 7,
        num_conv_pos_embeddings=32, num_conv_pos_embedding_groups=4,
    )  # fmt: skip
    model = transformers.HubertModel(config).eval()
    for p in model.parameters():
        p.add_(0.02 * torch.randn_like(p))  # norms and biases too, which start at 1 and 0
    model.save_pretrained(tmp_path)
    encoder = Encoder.from_pretrained(tmp_path)
    waveforms = torch.randn(2, 9_000)
    theirs = model(waveforms, output_hidden_states=True).hidden_states
    assert largest_difference(encoder(waveforms).hidden_states, theirs) <= 1e-4


def test_gradients_equal_hugging_faces(tmp_path: Path) -> None:
    encoder = Encoder(SMALL).eval()
    model = hugging_face(encoder, tmp_path)
    waveforms = torch.randn(2, 6_000)
    weights = torch.randn(2, frame_count(6_000), 64)
    (encoder(waveforms).last * weights).sum().backward()
    (model(waveforms).last_hidden_state * weights).sum().backward()
    theirs = dict(model.named_parameters())
    for name, p in encoder.named_parameters():
        assert p.grad is not None
        torch.testing.assert_close(p.grad, theirs[name].grad, rtol=2e-3, atol=2e-4, msg=lambda m, n=name: f"{n}: {m}")


def test_gradients_into_the_front_end_are_scaled_in_training() -> None:
    encoder = Encoder(EncoderConfig(**(SMALL.__dict__ | NO_DROPOUT)))
    waveforms, name = torch.randn(1, 4_000), "feature_extractor.conv_layers.3.conv.weight"
    gradients = []
    for mode in (True, False):
        encoder.train(mode).zero_grad()
        encoder(waveforms).last.square().sum().backward()
        gradients.append({n: p.grad.clone() for n, p in encoder.named_parameters() if p.grad is not None})
    torch.testing.assert_close(gradients[0][name], 0.1 * gradients[1][name], rtol=1e-4, atol=1e-6)
    projection = "feature_projection.projection.weight"
    torch.testing.assert_close(gradients[0][projection], gradients[1][projection], rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_an_utterance_gives_the_same_alone_and_in_a_padded_batch() -> None:
    encoder = Encoder(SMALL).eval()
    lengths = torch.tensor([16_000, 400, 7_777, 12_345])
    batch = torch.full((4, 16_000), 3.0)  # loud padding must not matter
    for row, length in zip(batch, lengths, strict=True):
        row[:length] = torch.randn(int(length))
    padded = encoder(batch, lengths)
    for index, length in enumerate(lengths):
        alone = encoder(batch[index : index + 1, :length])
        frames = int(padded.frames[index])
        assert frames == frame_count(int(length))
        for together, single in zip(padded.hidden_states, alone.hidden_states, strict=True):
            torch.testing.assert_close(together[index, :frames], single[0], rtol=1e-4, atol=2e-5)


@torch.no_grad()
def test_masked_frames_carry_no_signal_into_the_transformer() -> None:
    encoder = Encoder(SMALL).eval()
    frames = frame_count(8_000)
    mask = torch.zeros(1, frames, dtype=torch.bool)
    mask[:, 5:15] = True
    features = encoder.feature_projection(encoder.feature_extractor(torch.randn(1, 8_000)))
    changed = features.clone()
    changed[:, 5:15] += 1.0
    outputs = []
    for given in (features, changed):
        encoder.feature_projection.forward = lambda _, given=given: given  # type: ignore[method-assign]
        outputs.append(encoder(torch.zeros(1, 8_000), mask=mask).last)
    torch.testing.assert_close(outputs[0], outputs[1])
    del encoder.feature_projection.forward
    assert not torch.equal(encoder(torch.ones(1, 8_000), mask=mask).last, outputs[0])


@torch.no_grad()
def test_a_dropped_layer_passes_its_input_on_and_until_stops_early() -> None:
    encoder = Encoder(SMALL).eval()
    waveforms = torch.randn(1, 4_000)
    states = encoder(waveforms, keep=[True, False, True]).hidden_states
    assert torch.equal(states[1], states[2])
    early = encoder(waveforms, until=0).hidden_states
    assert len(early) == 2
    torch.testing.assert_close(early[1], encoder(waveforms).hidden_states[1])


def test_too_short_and_foreign_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="399 samples"):
        Encoder(SMALL)(torch.zeros(1, 399))
    with pytest.raises(UserError, match=r"no config\.json"):
        Encoder.from_pretrained(tmp_path)
    transformers.HubertConfig().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="damaged or incomplete"):
        Encoder.from_pretrained(tmp_path)
    transformers.HubertConfig(feat_extract_norm="layer").save_pretrained(tmp_path)
    with pytest.raises(UserError, match="this is another architecture"):  # reported before the weights are read
        Encoder.from_pretrained(tmp_path)
    Encoder(SMALL).save_pretrained(tmp_path / "other")
    (tmp_path / "other" / "config.json").write_text((tmp_path / "config.json").read_text())
    with pytest.raises(UserError, match="feat_extract_norm = 'layer'"):
        Encoder.from_pretrained(tmp_path / "other")


def test_weights_of_another_size_are_named(tmp_path: Path) -> None:
    Encoder(SMALL).save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace('"num_hidden_layers": 3', '"num_hidden_layers": 4'))
    with pytest.raises(UserError, match=r"config\.json has layers 4, the weights have 3"):
        Encoder.from_pretrained(tmp_path)


def test_the_short_gelu_and_its_slope_are_gelu() -> None:
    x = torch.linspace(-12, 12, 100_001, dtype=torch.float32, requires_grad=True)
    ours = ShortGelu.apply(x)
    (slope,) = torch.autograd.grad(ours.sum(), x)
    reference = x.detach().double().requires_grad_()
    exact = torch.nn.functional.gelu(reference)
    (exact_slope,) = torch.autograd.grad(exact.sum(), reference)
    torch.testing.assert_close(ours.double(), exact, rtol=3e-7, atol=5e-7)
    torch.testing.assert_close(slope.double(), exact_slope, rtol=3e-7, atol=5e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_short_gelu_keeps_its_gradient_when_compiled(dtype: torch.dtype) -> None:
    x = torch.linspace(-4, 4, 101, dtype=dtype, requires_grad=True)
    compiled = torch.compile(ShortGelu.apply, backend="aot_eager", dynamic=False)
    (found,) = torch.autograd.grad(compiled(x).sum(), x)
    (expected,) = torch.autograd.grad(torch.nn.functional.gelu(x).sum(), x)
    torch.testing.assert_close(found, expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-6)


def test_gradients_reach_the_waveform_as_in_hugging_face() -> None:
    torch.manual_seed(0)
    ours = Encoder(EncoderConfig(hidden_size=32, layers=2, heads=2, inner_size=64, conv_channels=16, position_groups=4))
    ours = ours.eval()
    theirs = transformers.HubertModel(transformers.HubertConfig(**to_hugging_face(ours.config))).eval()
    theirs.load_state_dict(ours.state_dict(), strict=False)
    x = torch.randn(2, 4000, requires_grad=True)
    weights = torch.randn(2, frame_count(4000), 32)
    (mine,) = torch.autograd.grad((ours(x).last * weights).sum(), x)
    (other,) = torch.autograd.grad((theirs(x).last_hidden_state * weights).sum(), x)
    torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4 * float(other.abs().max()))


def test_a_hook_sees_what_a_layer_gave_with_gradients_and_without() -> None:
    encoder = Encoder(EncoderConfig(hidden_size=32, layers=1, heads=2, inner_size=64, conv_channels=16)).eval()
    seen: list[torch.Tensor] = []
    dense = encoder.encoder.layers[0].feed_forward.intermediate_dense
    dense.register_forward_hook(lambda module, inputs, output: seen.append(output))
    x = torch.randn(1, 2000)
    encoder(x)
    with torch.no_grad():
        encoder(x)
    torch.testing.assert_close(seen[1], seen[0])


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 3e-3), (torch.bfloat16, 3e-2)])
def test_encoders_in_half_precision_are_close_to_fp32(dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    exact = Encoder(SMALL).eval()
    waveforms, lengths = 0.1 * torch.randn(2, 16_000), torch.tensor([16_000, 9_000])
    with torch.backends.mkldnn.flags(enabled=False):
        half = copy.deepcopy(exact).to(dtype)
        for given in (waveforms, waveforms.to(dtype)):
            found, wanted = half(given, lengths).hidden_states, exact(given.float(), lengths).hidden_states
            assert all(state.dtype == dtype for state in found)
            for ours, theirs in zip(found, wanted, strict=True):
                assert float((ours.float() - theirs).norm() / theirs.norm()) < tolerance
        half.train()(waveforms.to(dtype)).last.float().sum()  # with dropout too


def test_a_half_precision_encoder_saves_and_loads_as_what_it_is(tmp_path: Path) -> None:
    encoder = Encoder(SMALL).half()
    encoder.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "float16"
    again = Encoder.from_pretrained(tmp_path)
    assert fingerprint(again) == fingerprint(encoder)
    assert all(torch.equal(a, b.half()) for a, b in zip(encoder.parameters(), again.parameters(), strict=True))
