"""Both ways to compute the position convolution, against torch's own."""

import pytest
import torch
import torch.nn.functional as F

from sjepa.model.position import ConvPosition, convolve_by_blocks, convolve_by_fourier


@pytest.mark.parametrize("convolve", [convolve_by_blocks, convolve_by_fourier])
@pytest.mark.parametrize(
    ("frames", "kernel", "groups"), [(1, 128, 4), (37, 16, 2), (129, 128, 4), (300, 64, 8), (50, 8, 1)]
)
def test_values_and_gradients_equal_a_grouped_convolution(convolve, frames: int, kernel: int, groups: int) -> None:
    x = torch.randn(2, frames, 32, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(32, 32 // groups, kernel, dtype=torch.float64, requires_grad=True)
    expected = F.conv1d(x.transpose(1, 2), weight, padding=kernel // 2, groups=groups)[:, :, :-1].transpose(1, 2)
    upstream = torch.randn_like(expected)
    theirs = torch.autograd.grad(expected, (x, weight), upstream)
    ours = convolve(x, weight, groups)
    torch.testing.assert_close(ours, expected)
    for a, b in zip(torch.autograd.grad(ours, (x, weight), upstream), theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_the_weight_is_normalised_as_torch_does_it() -> None:
    position = ConvPosition(32, 16, 4)
    with torch.no_grad():
        position.conv.parametrizations.weight.original0.mul_(1 + torch.rand(16))
    x = torch.randn(2, 40, 32)
    expected = F.gelu(F.conv1d(x.transpose(1, 2), position.conv.weight, position.conv.bias, padding=8, groups=4))
    torch.testing.assert_close(position(x), expected[:, :, :-1].transpose(1, 2), rtol=1e-4, atol=1e-5)
