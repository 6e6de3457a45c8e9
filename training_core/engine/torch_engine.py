"""Plain torch, the default engine. With several ranks each holds the whole model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from training_core.dist_info import SINGLE_PROCESS, DistInfo
from training_core.distributed import all_reduce_gradients, broadcast_weights
from training_core.engine.master_weights import MasterWeights
from training_core.engine.optimizers import BuildOptimizers, adamw
from training_core.engine.protocol import A, M, Objective, StateDict, T
from training_core.errors import ConfigError
from training_core.types import Loss


class TorchEngine:
    """One or more torch optimizers, a schedule, and gradients that are added up over ranks.

    Weights in half precision have masters in single precision; see `MasterWeights`.

    Args:
        model: model to train, except parameters that need no gradient.
        learning_rate: peak of the learning rate.
        schedule: step (from 0) -> factor on `learning_rate`.
        weight_decay: decoupled, on matrices only.
        max_grad_norm: the gradient is scaled down to this norm.
        optimizer: builds the optimizers, e.g. an entry of `OPTIMIZERS` with some arguments bound.
        dist_info: this process; all ranks start with the weights of the first.
    """

    needs_even_ranks = False
    computes_together = False

    def __init__(
        self,
        model: nn.Module,
        *,
        learning_rate: float,
        schedule: Callable[[int], float],
        weight_decay: float = 0.0,
        max_grad_norm: float = 1.0,
        optimizer: BuildOptimizers = adamw,
        dist_info: DistInfo = SINGLE_PROCESS,
    ) -> None:
        self.model = model
        broadcast_weights(model, dist_info)
        self._dist_info = dist_info
        self._peak, self._schedule, self._done = learning_rate, schedule, 0
        self._max_grad_norm = max_grad_norm
        self._masters = MasterWeights([p for p in model.parameters() if p.requires_grad])
        self._optimizers = optimizer(model, learning_rate=learning_rate, weight_decay=weight_decay)
        self._masters.give_to(self._optimizers)
        self._peaks = [[group["lr"] for group in o.param_groups] for o in self._optimizers]

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        return self._peak * self._schedule(self._done)

    def loss(self, objective: Objective[M], micro_batch: M) -> Loss:
        """Compute `objective` on the model."""
        return objective(self.model, micro_batch)

    def backward(self, total: Tensor) -> None:
        """Add the gradient of `total`, the loss summed over the micro-batch."""
        total.backward()
        self._masters.take_gradients()

    def step(self, count: float) -> float:
        """Add up, divide by `count`, clip, update, clear; see `TrainEngine.step`."""
        norm = sum_and_clip(self._masters.updated, count, self._max_grad_norm, self._dist_info)
        if math.isfinite(norm):
            self._update()
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        return norm

    def _update(self) -> None:
        factor = self._schedule(self._done)
        for optimizer, peaks in zip(self._optimizers, self._peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
            optimizer.step()
        self._masters.write_back()
        self._done += 1

    @torch.no_grad()
    def compute(self, function: Callable[[Any, A], T], argument: A) -> T:
        """Return `function(model, argument)`; see `TrainEngine.compute`."""
        return function(self.model, argument)

    def at_work(self) -> AbstractContextManager[object]:
        """Do nothing: the weights are always whole."""
        return nullcontext()

    @contextmanager
    def gathered_weights(self) -> Iterator[nn.Module]:
        """Yield the model itself, which is always whole."""
        yield self.model

    def weights_to_send(self) -> nn.Module:
        """Return the model, which is always whole."""
        return self.model

    def weights_on_first_rank(self) -> AbstractContextManager[nn.Module]:
        """Return the model, which is always whole."""
        return nullcontext(self.model)

    def finish(self, *, only_first_rank: bool = False) -> None:
        """Do nothing: the weights are in `model` already."""

    def state_dict(self) -> StateDict:
        """Return moments of the optimizers, masters, and the position in the schedule."""
        moments = [optimizer.state_dict() for optimizer in self._optimizers]
        masters = self._masters.state()
        return {"kind": "torch", "optimizers": moments, "masters": masters, "done": self._done}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore what `state_dict` returned.

        Raises:
            ConfigError: if another engine or another optimizer returned it.
        """
        require_kind(state, "torch")
        for optimizer, moments in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(moments)
        self._masters.load_state(state["masters"])
        self._done = int(state["done"])

    def save_shards(self, directory: Path) -> None:
        """Write nothing: every rank has the same state."""

    def load_shards(self, directory: Path, scratch: Path) -> None:
        """Read nothing."""


def sum_and_clip(
    parameters: Sequence[Tensor], count: float, max_grad_norm: float, dist_info: DistInfo
) -> float:
    """Add up the gradients of all ranks, divide them by `count`, and clip them.

    Returns:
        The gradient norm before clipping.
    """
    all_reduce_gradients(parameters, dist_info)
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.div_(count or 1.0)
    return float(nn.utils.clip_grad_norm_(parameters, max_grad_norm))


def require_kind(state: StateDict, kind: str) -> None:
    """Refuse the state of another engine.

    Raises:
        ConfigError: if the state is not of the engine `kind`.
    """
    if (found := state.get("kind")) != kind:
        raise ConfigError(
            f"the checkpoint was made by the engine '{found}', and training.engine is '{kind}'; "
            "set it back, or remove the attempt's checkpoints to start over"
        )
