"""The optimizers of a run, and their state as named tensors."""

import torch
from torch import Tensor, nn

from sjepa.config import Config
from sjepa.model.sjepa import SJEPA
from sjepa.train.compute import should_compile
from sjepa.train.muon import Muon


def make_optimizers(config: Config, model: SJEPA, device: torch.device) -> list[torch.optim.Optimizer]:
    """Make the optimizers and their state: AdamW, and Muon for transformer matrices if the config asks for it."""
    train = config.train
    lr = torch.zeros((), device=device) if device.type == "cuda" else 0.0
    matrices = transformer_matrices(model) if train.optimizer == "muon" else []
    in_muon = set(matrices)
    others = [p for p in model.parameters() if p not in in_muon]
    adam = torch.optim.AdamW(
        others,
        lr=lr,
        betas=(train.beta1, train.beta2),
        weight_decay=train.weight_decay,
        fused=True,
        capturable=device.type == "cuda",
    )
    # Create the state now, because a captured step cannot: LayerDrop may delay the first update of a parameter.
    for p in others:
        zeros = {key: torch.zeros_like(p, requires_grad=False) for key in ("exp_avg", "exp_avg_sq")}
        adam.state[p] = {"step": torch.zeros((), device=p.device), **zeros}
    if not matrices:
        return [adam]
    muon = Muon(matrices, lr, train.muon_momentum, train.muon_weight_decay)
    if should_compile(config, device):
        muon.update = torch.compile(muon.update, dynamic=False)
    return [adam, muon]


def transformer_matrices(model: SJEPA) -> list[nn.Parameter]:
    """Return the weight matrices of the transformer layers of encoder and predictor."""
    layers = [*model.encoder.encoder.layers, model.predictor.layer]
    return [p for layer in layers for p in layer.parameters() if p.ndim == 2]


def set_learning_rate(optimizers: list[torch.optim.Optimizer], rate: float) -> None:
    """Set the learning rate. On a GPU, change the tensor in place, because captured steps read it."""
    for optimizer in optimizers:
        group = optimizer.param_groups[0]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def keep_state(past: list[torch.optim.Optimizer], optimizers: list[torch.optim.Optimizer]) -> None:
    """Keep the state of parameters that both have. A new last layer of the head starts with zero state."""
    for before, optimizer in zip(past, optimizers, strict=True):
        optimizer.state.update({p: state for p, state in before.state.items() if p in optimizer.state})


def named_state(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Return the tensors of the state by parameter and key, as checkpoints store them."""
    return {
        f"{name}/{key}": value
        for name, p in model.named_parameters()
        for optimizer in optimizers
        for key, value in optimizer.state.get(p, {}).items()
    }
