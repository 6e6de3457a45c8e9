"""The twin of a model, which DeepSpeed trains, so that the plain model never has its hooks."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from training_core.engine.protocol import M, Objective
from training_core.types import Loss


class Asked(nn.Module):
    """A model whose forward pass computes an objective.

    DeepSpeed gathers a divided parameter while the module that uses it runs. The chunked loss uses
    the head's weight outside the head, but inside this module. So DeepSpeed treats this module as a
    user of the weight, also in the backward pass.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, objective: Objective[M], micro_batch: M) -> tuple[Tensor, Loss]:
        """Compute the loss; return its total separately, where DeepSpeed's hooks find it."""
        loss = objective(self.model, micro_batch)
        return loss.total, loss


def take_weights(model: nn.Module) -> nn.Module:
    """Move the weights of `model` into a twin of it; `model` is left with empty parameters."""
    own = {id(p): nn.Parameter(p.data, requires_grad=p.requires_grad) for p in model.parameters()}
    twin = copy.deepcopy(model, dict(own))
    for parameter in model.parameters():
        parameter.data = parameter.data.new_empty(0)
    return twin


def of_one_dtype(param_groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Split parameter groups by dtype, because ZeRO would convert a mixed group to the wider one.

    E.g. a scalar head is in float32 and the rest of the model in bfloat16.
    """
    found = []
    for group in param_groups:
        dtypes = dict.fromkeys(p.dtype for p in group["params"])
        found += [{**group, "params": [p for p in group["params"] if p.dtype == d]} for d in dtypes]
    return found
