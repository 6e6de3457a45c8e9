"""Models that are only used, not trained: their weights may wait in CPU memory, or be divided."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import swap_tensors

from training_core.dist_info import DistInfo
from training_core.models.language_model import LanguageModel
from training_core.models.sharding import shard

A = TypeVar("A")
T = TypeVar("T")


class FrozenWeights:
    """The weights of a frozen model: always on their device, or only while the model computes.

    Offloaded weights are in pages of CPU memory from which a GPU copies directly. They stay there
    while the model works with a copy, so that nothing is copied back. Divided weights come to the
    device one layer at a time, from the other ranks or from CPU memory.

    Args:
        model: frozen; where it is does not matter.
        device: where it computes.
        offload: whether the weights leave the device between two uses.
        divided_by: ranks that divide the weights; None: this process has all.

    Attributes:
        device: where it computes.
        computes_together: whether every rank must call `compute` equally often.
    """

    def __init__(
        self,
        model: LanguageModel,
        device: torch.device,
        *,
        offload: bool = False,
        divided_by: DistInfo | None = None,
    ) -> None:
        self.model = model
        self.device = device
        may_offload = offload and device.type != "cpu"
        self._asked = None
        # What one process has on its device already needs no gathering.
        if divided_by is not None and (may_offload or not divided_by.is_single_process):
            self._asked = shard(model, device, divided_by, offload=may_offload)
        self.computes_together = self._asked is not None
        self._is_offloaded = may_offload and self._asked is None
        self._users = 0
        self._exchanged: list[tuple[Tensor, Tensor]] = []
        if self._asked is None and not may_offload:
            model.to(device)
        elif self._is_offloaded and torch.cuda.is_available():
            for tensor in _tensors(model):
                tensor.data = tensor.data.cpu().pin_memory()

    @contextmanager
    def at_work(self) -> Iterator[LanguageModel]:
        """Let `compute` use the model while the body runs; uses may be nested.

        Yields the model. Its own forward pass needs weights that are not divided.
        """
        if self._is_offloaded and self._users == 0:
            self._exchange([(tensor, self._copy(tensor)) for tensor in _tensors(self.model)])
        self._users += 1
        try:
            yield self.model
        finally:
            self._users -= 1
            if self._users == 0:
                self._exchange(self._exchanged)
                self._exchanged = []

    @torch.no_grad()
    def compute(self, function: Callable[[Any, A], T], argument: A) -> T:
        """Return `function(model, argument)`; inside of `at_work`."""
        if self._asked is not None:
            return self._asked(function, argument)
        return function(self.model, argument)

    def _exchange(self, pairs: list[tuple[Tensor, Tensor]]) -> None:
        for tensor, other in pairs:
            swap_tensors(tensor, other)
        self._exchanged = pairs

    def _copy(self, tensor: Tensor) -> Tensor:
        copy = tensor.data.to(self.device, non_blocking=True)
        return (
            nn.Parameter(copy, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copy
        )


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    return chain(model.parameters(), model.buffers())
