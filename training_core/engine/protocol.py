"""What the training loop asks of an engine."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn


class TrainEngine(Protocol):
    """A model with its optimizer and schedule, on one process or many."""

    model: nn.Module

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        ...

    def backward(self, total: Tensor) -> None:
        """Add the gradient of the undivided loss `total`."""
        ...

    def step(self, count: float) -> float:
        """Divide the gradient by `count` (summed over ranks), clip it, update, clear.

        Returns:
            The gradient norm before clipping; if it is not finite nothing was updated.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything but the weights that the next step depends on."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        ...
