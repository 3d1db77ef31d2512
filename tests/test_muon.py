"""Muon against torch's own, and the state of a run that uses it."""

import pytest
import torch

from sjepa.torch_private import prepare_step
from sjepa.train.muon import Muon, orthogonalise

SHAPES = [(8, 8), (8, 8), (8, 24), (24, 8)]


def make(seed: int) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def give_gradients(matrices: list[torch.nn.Parameter], seed: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in matrices:
        p.grad = scale * torch.randn(p.shape, generator=generator)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon since 2.9")
def test_updates_equal_those_of_torch() -> None:
    ours, theirs = make(0), make(0)
    muon = Muon(ours, 0.01, momentum=0.9, weight_decay=0.1)
    expected = torch.optim.Muon(theirs, lr=0.01, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    start = [p.detach().clone() for p in ours]
    for step in range(5):
        scale = 3.0**step  # of another size each time, which the momentum would remember
        give_gradients(ours, step, scale)
        give_gradients(theirs, step)
        prepare_step(muon, torch.tensor(scale), torch.tensor(False))
        muon.step()
        expected.step()
    for p, other, before in zip(ours, theirs, start, strict=True):  # torch computes the iterations in bf16
        assert (p - other).norm() < 0.02 * (p - before).norm()


def test_iterations_move_each_singular_value_by_the_polynomial() -> None:
    x = torch.randn(3, 6, 10, generator=torch.Generator().manual_seed(1))
    u, s, v = torch.linalg.svd(x.double(), full_matrices=False)
    s = s / s.norm(dim=1, keepdim=True)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    expected = (u * s[:, None]) @ v
    assert torch.allclose(orthogonalise(x).double(), expected, atol=1e-5)
    assert torch.allclose(orthogonalise(x.mT).double(), expected.mT, atol=1e-5)


def test_a_skipped_step_changes_nothing() -> None:
    matrices = make(2)
    muon = Muon(matrices, 0.01, momentum=0.9, weight_decay=0.1)
    give_gradients(matrices, 0)
    prepare_step(muon, torch.tensor(1.0), torch.tensor(False))
    muon.step()
    before = [(p.detach().clone(), muon.state[p]["momentum"].clone()) for p in matrices]
    give_gradients(matrices, 1, scale=float("nan"))
    prepare_step(muon, torch.tensor(float("nan")), torch.tensor(True))
    muon.step()
    for p, (weight, momentum) in zip(matrices, before, strict=True):
        assert torch.equal(p, weight)
        assert torch.equal(muon.state[p]["momentum"], momentum)


def test_a_matrix_without_gradient_stays() -> None:
    matrices = make(3)
    muon = Muon(matrices, 0.01, momentum=0.9, weight_decay=0.1)
    give_gradients(matrices, 0)
    matrices[0].grad = None
    before = [p.detach().clone() for p in matrices]
    prepare_step(muon, torch.tensor(1.0), torch.tensor(False))
    muon.step()
    assert [torch.equal(p, b) for p, b in zip(matrices, before, strict=True)] == [True, False, False, False]


def test_layerdrop_does_not_compile_the_update_again() -> None:
    """A second compilation would end a CUDA graph's capture."""
    matrices = make(4)
    muon = Muon(matrices, torch.tensor(0.01), momentum=0.9, weight_decay=0.1)
    muon.update = torch.compile(muon.update, dynamic=False, backend="eager")
    prepare_step(muon, torch.tensor(1.0), torch.tensor(False))
    give_gradients(matrices, 0)
    muon.step()
    with torch.compiler.set_stance("fail_on_recompile"):
        for dropped in ([], [0], [1], [0, 1], [3]):
            give_gradients(matrices, 1)
            for i in dropped:
                matrices[i].grad = None
            muon.step()
