"""What computes with a model without gradients, wherever the weights are."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import torch

from training_core.models.language_model import LanguageModel

A = TypeVar("A")
T = TypeVar("T")


class Computing(Protocol):
    """A `FrozenWeights`, or a model in training."""

    @property
    def computes_together(self) -> bool:
        """Return whether every rank must call `compute` equally often."""
        ...

    def compute(self, function: Callable[[Any, A], T], argument: A) -> T:
        """Return `function(model, argument)` without gradients; inside of `at_work`."""
        ...

    def at_work(self) -> AbstractContextManager[object]:
        """Let `compute` use the weights while the body runs; uses may be nested.

        Every rank must call it.
        """
        ...


class ComputingModel(Computing, Protocol):
    """A model that also shows its config, its dtype and its device, but not always its weights."""

    @property
    def model(self) -> LanguageModel:
        """Return the plain model, possibly without weights."""
        ...

    @property
    def device(self) -> torch.device:
        """Return where it computes."""
        ...


class WithoutAdapter:
    """A policy that computes with its adapter disabled; see `Computing`.

    Args:
        policy: trains only an adapter.
    """

    def __init__(self, policy: Computing) -> None:
        self._policy = policy
        self.computes_together, self.at_work = policy.computes_together, policy.at_work

    def compute(self, function: Callable[[Any, A], T], argument: A) -> T:
        """Return `function(model, argument)` for the model before the adapter."""
        from training_core.models.adapters import (  # noqa: PLC0415 - importing peft takes seconds
            adapter_disabled,
        )

        def without(model: LanguageModel, argument: A) -> T:
            with adapter_disabled(model) as plain:
                return function(plain, argument)

        return self._policy.compute(without, argument)
