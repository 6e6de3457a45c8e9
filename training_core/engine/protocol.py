"""The interface between the training loop and an engine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from torch import Tensor, nn

from training_core.types import Loss

M = TypeVar("M")
StateDict: TypeAlias = dict[str, Any]
"""Tensors and plain values by name, possibly nested; read back with `weights_only=True`."""
Objective: TypeAlias = Callable[[nn.Module, M], Loss]
"""(model, micro-batch) -> Loss(sum, count, metrics)."""


class TrainEngine(Protocol):
    """A model with its optimizer and schedule, on one process or many.

    Attributes:
        model: the plain model; see `gathered_weights`.
        needs_even_ranks: whether every rank must make the same number of backward passes per step.
    """

    model: nn.Module
    needs_even_ranks: bool

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        ...

    def loss(self, objective: Objective[M], micro_batch: M) -> Loss:
        """Compute `objective` on the model in training."""
        ...

    def backward(self, total: Tensor) -> None:
        """Add the gradient of the undivided loss `total`."""
        ...

    def step(self, count: float) -> float:
        """Add up the gradients of all ranks, divide by `count`, clip, update, clear.

        Args:
            count: of the whole batch, summed over ranks.

        Returns:
            The gradient norm before clipping; if it is not finite, nothing was updated.
        """
        ...

    def gathered_weights(self) -> AbstractContextManager[nn.Module]:
        """Give `model` all its current weights while the body runs; every rank must call it.

        Used for evaluation, averaging and saving. Changes to the weights are lost.
        """
        ...

    def finish(self) -> None:
        """Return the trained weights to `model`; the engine cannot be used afterwards."""
        ...

    def state_dict(self) -> StateDict:
        """Return the state for the next step, except weights and the shards of ranks."""
        ...

    def load_state_dict(self, state: StateDict) -> None:
        """Restore what `state_dict` returned.

        Raises:
            ConfigError: if another kind of engine returned it.
        """
        ...

    def save_shards(self, directory: Path) -> None:
        """Write the part of each rank below `directory`; every rank must call it."""
        ...

    def load_shards(self, directory: Path, scratch: Path) -> None:
        """Restore what `save_shards` wrote, on any number of ranks; after `load_state_dict`.

        Args:
            directory: folder that `save_shards` wrote; it is not changed.
            scratch: folder for temporary files, which all ranks share.
        """
        ...
