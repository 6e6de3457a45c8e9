"""What the training loop asks of an engine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from torch import Tensor, nn

from training_core.types import Loss

M = TypeVar("M")
StateDict: TypeAlias = dict[str, Any]
"""Tensors and plain values by name, nested as they come; read back with `weights_only=True`."""
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
        """Ask `objective` about the model as it is trained."""
        ...

    def backward(self, total: Tensor) -> None:
        """Add the gradient of the undivided loss `total`."""
        ...

    def step(self, count: float) -> float:
        """Add up the gradients of all ranks, divide by `count`, clip, update, clear.

        Args:
            count: of the whole batch, summed over ranks.

        Returns:
            The gradient norm before clipping; if it is not finite nothing was updated.
        """
        ...

    def gathered_weights(self) -> AbstractContextManager[nn.Module]:
        """Let `model` have all of its current weights while the body runs; on every rank at once.

        To evaluate, to average, to write them down. Changes to them are lost.
        """
        ...

    def finish(self) -> None:
        """Leave the trained weights in `model` for good; the engine cannot go on afterwards."""
        ...

    def state_dict(self) -> StateDict:
        """Everything but the weights that the next step depends on, and that is small or whole."""
        ...

    def load_state_dict(self, state: StateDict) -> None:
        """Restore what `state_dict` returned.

        Raises:
            ConfigError: if another kind of engine returned it.
        """
        ...

    def save_shards(self, directory: Path) -> None:
        """Write what each rank holds for itself below `directory`; on every rank at once."""
        ...

    def load_shards(self, directory: Path, scratch: Path) -> None:
        """Restore what `save_shards` wrote, on any number of ranks; after `load_state_dict`.

        Args:
            directory: only read.
            scratch: may be used meanwhile; every rank sees it.
        """
        ...
