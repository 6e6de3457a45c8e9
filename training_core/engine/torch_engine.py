"""Plain torch on one process: the default on a laptop."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR


class TorchEngine:
    """AdamW on one process.

    Args:
        model: what is trained; parameters that need no gradient are left alone.
        learning_rate: the peak.
        schedule: step (from 0) -> factor on `learning_rate`.
        weight_decay: decoupled, on matrices only.
        max_grad_norm: the gradient is scaled down to this norm.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        learning_rate: float,
        schedule: Callable[[int], float],
        weight_decay: float = 0.0,
        max_grad_norm: float = 1.0,
    ) -> None:
        self.model = model
        self._max_grad_norm = max_grad_norm
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in self._parameters if p.ndim >= 2], "weight_decay": weight_decay},  # noqa: PLR2004
            {"params": [p for p in self._parameters if p.ndim < 2], "weight_decay": 0.0},  # noqa: PLR2004
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))
        self._schedule = LambdaLR(self._optimizer, schedule)

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        return float(self._schedule.get_last_lr()[0])

    def backward(self, total: Tensor) -> None:
        """Add the gradient of the undivided loss `total`."""
        total.backward()

    def step(self, count: float) -> float:
        """Divide the gradient by `count`, clip it, update, clear; see `TrainEngine.step`."""
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.div_(max(count, 1.0))
        norm = float(nn.utils.clip_grad_norm_(self._parameters, self._max_grad_norm))
        if math.isfinite(norm):
            self._optimizer.step()
            self._schedule.step()
        self._optimizer.zero_grad(set_to_none=True)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Optimizer moments and schedule position."""
        return {"optimizer": self._optimizer.state_dict(), "schedule": self._schedule.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
