"""GELU's gradient in blocks, against torch's in fp64."""

import pytest
import torch
import torch.nn.functional as F

from sjepa.model import activation
from sjepa.model.activation import BLOCK, BlockGelu, Gelu


@pytest.mark.parametrize("shape", [(1,), (3, 5), (BLOCK + 3,), (2, BLOCK // 2 + 1)])
def test_values_and_gradients_equal_torchs(shape: tuple[int, ...]) -> None:
    x = (3 * torch.randn(shape, generator=torch.Generator().manual_seed(0))).requires_grad_()
    with torch.no_grad():
        x.view(-1)[0] = 0.0  # where a masked stretch meets a bias of zero
    upstream = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    exact = x.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(F.gelu(exact), exact, upstream.double())
    ours = BlockGelu.apply(x)
    torch.testing.assert_close(ours, F.gelu(x))
    (found,) = torch.autograd.grad(ours, x, upstream)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=2e-6)


def test_operands_may_lie_in_any_order() -> None:
    x = torch.randn(40, 30).t().requires_grad_()
    upstream = torch.randn(1).expand(30, 40)
    (expected,) = torch.autograd.grad(F.gelu(x), x, upstream)
    (found,) = torch.autograd.grad(BlockGelu.apply(x), x, upstream)
    torch.testing.assert_close(found, expected)


def test_the_module_uses_it_where_torchs_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, requires_grad=True)
    for slow, name in ((True, "BlockGeluBackward"), (False, "GeluBackward0")):
        monkeypatch.setattr(activation, "OWN_GRADIENT", slow)
        assert type(Gelu()(x).grad_fn).__name__ == name
