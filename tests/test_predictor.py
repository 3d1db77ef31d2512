"""Predictor, cluster head and the two paths."""

from dataclasses import replace

import torch
from torch import nn

from sjepa.model.encoder_config import EncoderConfig
from sjepa.model.predictor import ClusterHead, Predictor, PredictorConfig
from sjepa.model.sjepa import SJEPA
from sjepa.model.transformer import TransformerLayer
from sjepa.runs.encoder import Encoder

SMALL = EncoderConfig(
    hidden_size=32, layers=1, heads=2, inner_size=64, conv_channels=16, position_kernel=16, position_groups=2
)


def torch_layer(ours: TransformerLayer) -> nn.TransformerEncoderLayer:
    """torch's own encoder layer with the weights of one of ours, without dropout."""
    attention, inner = ours.attention, len(ours.feed_forward.intermediate_dense.weight)
    layer = nn.TransformerEncoderLayer(32, attention.heads, inner, 0.0, batch_first=True)
    with torch.no_grad():
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        layer.self_attn.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
        layer.self_attn.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
    layer.self_attn.out_proj.load_state_dict(attention.out_proj.state_dict())
    layer.linear1.load_state_dict(ours.feed_forward.intermediate_dense.state_dict())
    layer.linear2.load_state_dict(ours.feed_forward.output_dense.state_dict())
    layer.norm1.load_state_dict(ours.layer_norm.state_dict())
    layer.norm2.load_state_dict(ours.final_layer_norm.state_dict())
    return layer


@torch.no_grad()
def test_the_predictor_is_mask_token_positions_and_torchs_transformer_layer() -> None:
    predictor = Predictor(32, PredictorConfig(heads=4, inner_size=64, positions=50)).eval()
    for p in predictor.parameters():
        p.add_(0.1 * torch.randn_like(p))
    z, mask = torch.randn(2, 20, 32), torch.rand(2, 20) < 0.5
    filled = z.clone()
    filled[mask] = predictor.mask_token
    expected = predictor.projection(torch_layer(predictor.layer)(filled + predictor.positions[:20]))
    torch.testing.assert_close(predictor(z, mask), expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_predictor_drops_what_torchs_transformer_layer_drops() -> None:
    predictor = Predictor(32, PredictorConfig(heads=4, inner_size=64, positions=50, dropout=0.3)).train()
    layer = drop(torch_layer(predictor.layer), 0.3, 0.3, 0.3)
    z, mask = torch.randn(1, 20, 32), torch.zeros(1, 20, dtype=torch.bool)  # torch draws in another order for more
    torch.manual_seed(1)
    expected = predictor.projection(layer(z + predictor.positions[:20]))
    torch.manual_seed(1)
    torch.testing.assert_close(predictor(z, mask), expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_encoder_drops_at_each_place_by_its_own_rate() -> None:
    rates = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3}
    encoder = Encoder(replace(SMALL, layers=2, **rates)).train()
    projection, stack = encoder.feature_projection, encoder.encoder
    layers = [drop(torch_layer(ours), 0.1, 0.2, 0.3) for ours in stack.layers]
    samples = torch.randn(1, 8000)
    torch.manual_seed(1)
    x = projection.projection(projection.layer_norm(encoder.feature_extractor(samples)))
    x = nn.functional.dropout(x, 0.1)
    x = nn.functional.dropout(stack.layer_norm(x + stack.pos_conv_embed(x)), 0.1)
    for layer in layers:
        layer.activation = nn.functional.gelu
        x = layer(x)
    torch.manual_seed(1)
    torch.testing.assert_close(encoder(samples).last, x, rtol=1e-4, atol=1e-5)


def drop(
    layer: nn.TransformerEncoderLayer, rate: float, attention_rate: float, activation_rate: float
) -> nn.TransformerEncoderLayer:
    """Set the dropout of torch's layer, for training."""
    layer.dropout1.p = layer.dropout2.p = rate
    layer.self_attn.dropout, layer.dropout.p = attention_rate, activation_rate
    return layer.train()


def test_the_papers_predictor_and_head_have_the_stated_sizes() -> None:
    predictor = Predictor(768, PredictorConfig())
    assert predictor.positions.shape == (750, 768)
    assert predictor.layer.attention.heads == 8
    layer = nn.TransformerEncoderLayer(768, 8, 1536)
    assert sum(p.numel() for p in predictor.layer.parameters()) == sum(p.numel() for p in layer.parameters())
    head = ClusterHead(768, 500)
    assert sum(p.numel() for p in head.parameters()) == 2 * (768 * 768 + 768) + 768 * 500 + 500


@torch.no_grad()
def test_visible_frames_go_through_the_encoder_path_and_masked_ones_through_the_predictor() -> None:
    model = SJEPA(SMALL, PredictorConfig(heads=2, inner_size=64), 7).eval()
    z, mask = torch.randn(2, 12, 32), torch.rand(2, 12) < 0.5
    logits = model.predict(z, mask)
    torch.testing.assert_close(logits[~mask], model.head(z)[~mask])
    torch.testing.assert_close(logits[mask], model.head(model.predictor(z, mask))[mask])
    model.visible_path = "predictor"
    torch.testing.assert_close(model.predict(z, mask), model.head(model.predictor(z, mask)))


@torch.no_grad()
def test_a_new_output_layer_changes_k_and_nothing_else() -> None:
    model = SJEPA(SMALL, PredictorConfig(heads=2, inner_size=64), 7)
    before = {name: p.clone() for name, p in model.named_parameters()}
    model.replace_output(11)
    after = dict(model.named_parameters())
    assert after["head.output.weight"].shape == (11, 32)
    assert all(torch.equal(before[name], p) for name, p in after.items() if not name.startswith("head.output"))


@torch.no_grad()
def test_attention_can_start_as_inner_products_of_frames() -> None:
    """Scores summed over heads are then inner products of the frames themselves: a rotation changes none."""
    encoder = Encoder(replace(SMALL, layers=2, attention_start=0.5))
    predictor = Predictor(32, PredictorConfig(heads=4, inner_size=64, attention_start=1.5))
    x = torch.randn(20, 32)
    layers = [layer.attention for layer in encoder.encoder.layers]
    for attention, gain in [(layers[0], 0.5), (layers[1], 0.5), (predictor.layer.attention, 1.5)]:
        scores = attention.q_proj(x) @ attention.k_proj(x).T
        torch.testing.assert_close(scores, gain**2 * (x @ x.T), rtol=1e-4, atol=1e-4)
    assert not torch.equal(layers[0].q_proj.weight, layers[1].q_proj.weight)
    apart = Encoder(SMALL).encoder.layers[0].attention
    assert not torch.equal(apart.q_proj.weight, apart.k_proj.weight)
