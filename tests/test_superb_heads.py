"""Heads on frozen features: sizes, padding and dropout."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from sjepa.evaluate.superb.features import pad_states
from sjepa.evaluate.superb.heads import FrameHead, RecurrentHead, UtteranceHead, WeightedSum, run_both_ways


def test_heads_have_the_shapes_and_sizes_of_the_protocol() -> None:
    def size(module: torch.nn.Module) -> int:
        return sum(p.numel() for p in module.parameters())

    def lstm(inputs: int, width: int) -> int:
        return 2 * 4 * width * (inputs + width + 2)

    recurrent = RecurrentHead(768, 32)
    assert size(recurrent) == 769 * 1024 + lstm(1024, 1024) + lstm(2048, 1024) + 2049 * 32 == 42_828_832
    assert size(FrameHead(768, 74)) == 769 * 256 + 257 * 74
    assert size(UtteranceHead(768, 4)) == 769 * 256 + 257 * 4
    x, frames = torch.randn(2, 9, 16), torch.tensor([9, 4])
    assert RecurrentHead(16, 7, 8)(x, frames).shape == (2, 9, 7)
    assert FrameHead(16, 7)(x, frames).shape == (2, 9, 7)
    assert UtteranceHead(16, 7)(x, frames).shape == (2, 7)


def test_the_featurizer_starts_as_the_mean_of_the_layers() -> None:
    featurizer, states = WeightedSum(7), torch.randn(2, 7, 5, 16)
    assert sum(p.numel() for p in featurizer.parameters()) == 7
    torch.testing.assert_close(featurizer(states), states.mean(1))


def test_frames_are_counted_on_the_cpu_wherever_features_lie() -> None:
    states, frames = pad_states([torch.zeros(2, 5, 16, device="meta"), torch.zeros(2, 3, 16, device="meta")])
    assert frames.device.type == "cpu"
    assert frames.tolist() == [5, 3]
    assert UtteranceHead(16, 7).to("meta")(states[:, 0], frames).shape == (2, 7)


@pytest.mark.parametrize("head", [RecurrentHead(16, 5, 8), FrameHead(16, 5), UtteranceHead(16, 5)])
def test_a_head_ignores_padding(head: torch.nn.Module) -> None:
    head.eval()
    x, frames = torch.randn(3, 9, 16), torch.tensor([9, 4, 6])
    together = head(x, frames)
    for row, count in enumerate(frames.tolist()):
        alone = head(x[row : row + 1, :count], frames[row : row + 1])[0]
        expected = together[row] if alone.dim() == 1 else together[row, :count]
        torch.testing.assert_close(alone, expected, atol=1e-5, rtol=1e-5)


def test_both_directions_are_those_of_packed_utterances() -> None:
    layer = torch.nn.LSTM(16, 8, batch_first=True, bidirectional=True)
    x, frames = torch.randn(4, 9, 16, requires_grad=True), torch.tensor([4, 9, 1, 6])
    inside = (torch.arange(9) < frames[:, None])[:, :, None]
    packed, _ = layer(pack_padded_sequence(x, frames, batch_first=True, enforce_sorted=False))
    expected, _ = pad_packed_sequence(packed, batch_first=True)
    found = run_both_ways(layer, x, frames) * inside
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    gradients = [torch.autograd.grad((y * weights).sum(), [x, *layer.parameters()]) for y in (found, expected)]
    for ours, reference in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-5)


def test_a_fifth_is_dropped_after_each_recurrent_layer() -> None:
    head, shares = RecurrentHead(16, 5, 64), []
    head.dropout.register_forward_hook(lambda _, __, kept: shares.append(float((kept == 0).float().mean())))
    head(torch.randn(4, 50, 16), torch.full((4,), 50))
    assert shares == pytest.approx([0.2, 0.2], abs=0.02)
