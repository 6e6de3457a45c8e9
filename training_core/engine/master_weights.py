"""Copies in single precision of trained weights in half precision.

A bfloat16 weight has about three digits, so an update below about 1/256 of it would be lost. The
optimizer therefore updates the copies, and the model gets their rounded values after every step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

HALF = (torch.bfloat16, torch.float16)


class MasterWeights:
    """The tensors that the optimizer updates: a copy of each weight in half precision.

    A weight in another precision is its own master; then nothing is copied.

    Args:
        parameters: the trained parameters.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._copies = {p: p.detach().float() for p in parameters if p.dtype in HALF}
        self.updated = [self._copies.get(p, p) for p in parameters]
        """The tensors with the gradients, in the order of the parameters."""

    def give_to(self, optimizers: Sequence[Optimizer]) -> None:
        """Let new optimizers of the parameters update the masters instead."""
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["params"] = [self._copies.get(p, p) for p in group["params"]]

    def take_gradients(self) -> None:
        """Add the gradients of the weights to those of their copies, and clear the former."""
        for weight, master in self._copies.items():
            if weight.grad is not None:
                gradient = weight.grad.float()
                master.grad = gradient if master.grad is None else master.grad + gradient
                weight.grad = None

    @torch.no_grad()
    def write_back(self) -> None:
        """Round the copies into the weights."""
        for weight, master in self._copies.items():
            weight.copy_(master)

    def state(self) -> list[Tensor]:
        """Return the copies, for a checkpoint."""
        return list(self._copies.values())

    @torch.no_grad()
    def load_state(self, state: Sequence[Tensor]) -> None:
        """Restore what `state` returned."""
        for master, saved in zip(self._copies.values(), state, strict=True):
            master.copy_(saved)
