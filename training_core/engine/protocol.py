"""The interface between the training loop and an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from training_core.types import Loss

A = TypeVar("A")
M = TypeVar("M")
T = TypeVar("T")
StateDict: TypeAlias = dict[str, Any]
"""Tensors and plain values by name, possibly nested; read back with `weights_only=True`."""
Objective: TypeAlias = Callable[[nn.Module, M], Loss]
"""(model, micro-batch) -> Loss(sum, count, metrics)."""


@dataclass(frozen=True)
class DividedModel:
    """A model whose weights the ranks have divided, so that they are gathered a few at a time.

    Attributes:
        model: the plain model, without its weights.
        device: where the weights are gathered.
        weights: yields the names and gathered weights, each until the next is asked for. Every rank
            must take all of them.
        whole: gives `model` all weights while the body runs; every rank must call it.
    """

    model: nn.Module
    device: torch.device
    weights: Callable[[], Iterator[tuple[str, Tensor]]]
    whole: Callable[[], AbstractContextManager[nn.Module]]


class TrainEngine(Protocol):
    """A model with its optimizer and schedule, on one process or many.

    Attributes:
        model: the plain model; see `gathered_weights`.
        needs_even_ranks: whether every rank must make the same number of backward passes per step.
        computes_together: whether every rank must call `compute` equally often.
    """

    model: nn.Module
    needs_even_ranks: bool
    computes_together: bool

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        ...

    def loss(self, objective: Objective[M], micro_batch: M) -> Loss:
        """Compute `objective` on the model in training."""
        ...

    def backward(self, total: Tensor) -> None:
        """Add the gradient of `total`, the loss summed over the micro-batch."""
        ...

    def step(self, count: float) -> float:
        """Sum the gradients of all ranks, divide by `count`, clip, update weights, clear gradients.

        Args:
            count: count of the whole batch, summed over ranks.

        Returns:
            The gradient norm before clipping; if it is not finite, nothing was updated.
        """
        ...

    def compute(self, function: Callable[[Any, A], T], argument: A) -> T:
        """Return `function(model, argument)` without gradients, for the current weights.

        Inside of `at_work`.
        """
        ...

    def at_work(self) -> AbstractContextManager[object]:
        """Let `compute` use the weights while the body runs; every rank must call it."""
        ...

    def gathered_weights(self) -> AbstractContextManager[nn.Module]:
        """Give `model` all its current weights while the body runs; every rank must call it.

        Used for evaluation and averaging. Changes to the weights are lost.
        """
        ...

    def weights_on_first_rank(self) -> AbstractContextManager[nn.Module]:
        """Give `model` all its current weights on the first rank; every rank must call it.

        Used for saving: the memory of a GPU need not suffice for all weights.
        """
        ...

    def weights_to_send(self) -> nn.Module | DividedModel:
        """Return what a rollout engine takes the current weights from, inside of `at_work`."""
        ...

    def finish(self, *, only_first_rank: bool = False) -> None:
        """Return the trained weights to `model`; the engine cannot be used afterwards.

        Args:
            only_first_rank: whether the other ranks need none, so that `model` is only saved. Its
                weights may then be in CPU memory.
        """
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
