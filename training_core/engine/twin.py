"""A twin of a model: DeepSpeed trains the twin, so the plain model never has DeepSpeed's hooks."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn


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
