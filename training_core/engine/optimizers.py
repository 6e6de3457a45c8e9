"""Optimizers by name; they choose the update and the weight decay of each parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

BuildOptimizers = Callable[..., Sequence[Optimizer]]
"""(model, learning_rate=, weight_decay=) -> optimizers that together hold every trained parameter.
"""

MATRIX = 2
BETAS = (0.9, 0.95)


def adamw(
    model: nn.Module,
    *,
    learning_rate: float,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = BETAS,
    eps: float = 1e-8,
) -> tuple[Optimizer, ...]:
    """Use AdamW for every trained parameter; norms and biases do not decay.

    Args:
        model: parameters that need no gradient are not trained.
        learning_rate: peak of the learning rate.
        weight_decay: decoupled, on parameters of two or more dimensions.
        betas: decay of the two moments.
        eps: added to the denominator.

    Source:
        Loshchilov & Hutter 2019, https://arxiv.org/abs/1711.05101
    """
    groups = decay_groups([p for p in model.parameters() if p.requires_grad], weight_decay)
    return (torch.optim.AdamW(groups, lr=learning_rate, betas=betas, eps=eps),)


def muon(
    model: nn.Module,
    *,
    learning_rate: float,
    weight_decay: float = 0.1,
    betas: tuple[float, float] = BETAS,
    eps: float = 1e-8,
    momentum: float = 0.95,
    nesterov: bool = True,
    ns_steps: int = 5,
    scaling: str = "match_rms_adamw",
    auxiliary_learning_rate: float | None = None,
) -> tuple[Optimizer, ...]:
    """Use Muon for the matrices of the layers, and an auxiliary AdamW for all other parameters.

    Args:
        model: parameters that need no gradient are not trained.
        learning_rate: peak of the learning rate.
        weight_decay: decoupled, on matrices.
        betas: of the auxiliary AdamW.
        eps: of the auxiliary AdamW.
        momentum: of the orthogonalised update.
        nesterov: whether to use Nesterov momentum.
        ns_steps: Newton-Schulz iterations, which run in bfloat16.
        scaling: `match_rms_adamw` or `original`; see torch.optim.Muon.
        auxiliary_learning_rate: peak of the auxiliary AdamW; None uses `learning_rate`.

    Source:
        Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/; with weight decay and
        `match_rms_adamw`: Liu et al. 2025 (Moonlight), §2.2, https://arxiv.org/abs/2502.16982
    """
    matrices = hidden_matrices(model)
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if p.requires_grad and id(p) not in chosen]
    auxiliary = torch.optim.AdamW(
        decay_groups(others, weight_decay),
        lr=learning_rate if auxiliary_learning_rate is None else auxiliary_learning_rate,
        betas=betas,
        eps=eps,
    )
    if not matrices:
        return (auxiliary,)
    orthogonal = torch.optim.Muon(
        matrices,
        lr=learning_rate,
        weight_decay=weight_decay,
        momentum=momentum,
        nesterov=nesterov,
        ns_steps=ns_steps,
        adjust_lr_fn=scaling,
    )
    return (orthogonal, auxiliary)


OPTIMIZERS: dict[str, BuildOptimizers] = {"adamw": adamw, "muon": muon}


def decay_groups(parameters: Sequence[Tensor], weight_decay: float) -> list[dict[str, Any]]:
    """Return parameter groups in which norms and biases do not decay."""
    return [
        {"params": [p for p in parameters if p.ndim >= MATRIX], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < MATRIX], "weight_decay": 0.0},
    ]


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Return the trained two-dimensional weights inside the model's layers.

    Layers are the modules in an `nn.ModuleList` or `nn.Sequential`. Embeddings and heads are not
    in layers; they and weights tied to them are not returned.
    """
    outside = {id(p) for p in _outside(model)}
    embeddings = {
        id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)
    }
    return [
        p
        for p in model.parameters()
        if p.requires_grad and p.ndim == MATRIX and id(p) not in outside | embeddings
    ]


def _outside(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield parameters that belong to no layer."""
    if isinstance(module, nn.ModuleList | nn.Sequential):
        return
    yield from module.parameters(recurse=False)
    for child in module.children():
        yield from _outside(child)
