"""The private APIs of torch behave as the package expects."""

import torch

from sjepa.torch_private import count_compiled_graphs, prepare_step


def test_a_step_that_is_skipped_changes_neither_weights_nor_moments() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    weight.grad = torch.ones(3)
    prepare_step(optimizer, torch.tensor(1.0), torch.tensor(False))
    optimizer.step()
    assert (weight < 1).all()
    before = weight.detach().clone(), {key: value.clone() for key, value in optimizer.state[weight].items()}
    weight.grad = torch.full((3,), float("nan"))
    prepare_step(optimizer, torch.tensor(1.0), torch.tensor(True))
    optimizer.step()
    assert torch.equal(weight, before[0])
    for key, value in optimizer.state[weight].items():
        assert torch.equal(value, before[1][key])


def test_compiled_graphs_are_counted() -> None:
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    before = count_compiled_graphs()
    compiled(torch.zeros(2))
    assert count_compiled_graphs() == before + 1
