"""The weights that DeepSpeed trains: all at once in the plain model, or a few at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import groups
from torch import Tensor, nn

from training_core.dist_info import DistInfo
from training_core.engine.protocol import DividedModel
from training_core.engine.zero import PARTITIONED, Zero, cut_dimension

GATHERED_BYTES = 2**26
"""Size of the weights that are gathered at once to be sent; a larger one is gathered by itself."""

Named = tuple[str, Tensor, torch.Size]
"""Name, weight of the twin, and shape of the whole weight."""


class TwinWeights:
    """The weights of a twin, for a plain model that is empty otherwise.

    Args:
        model: the plain model.
        twin: as `take_weights` returns it; DeepSpeed has not divided it yet.
        zero: how DeepSpeed will divide it.
        device: where DeepSpeed holds it.
    """

    def __init__(self, model: nn.Module, twin: nn.Module, zero: Zero, device: torch.device) -> None:
        self._model, self._zero, self._device = model, zero, device
        self._shells = list(model.parameters())
        names = [name for name, _ in model.named_parameters()]
        self._named: list[Named] = [
            (name, weight, weight.shape)
            for name, weight in zip(names, twin.parameters(), strict=True)
        ]
        self._users = 0

    @property
    def shapes(self) -> list[torch.Size]:
        """Shapes of the whole weights."""
        return [shape for *_, shape in self._named]

    @contextmanager
    def gathered(self) -> Iterator[nn.Module]:
        """Fill the empty plain model with copies of the weights; uses may be nested."""
        if not self._users:
            self.fill()
        self._users += 1
        try:
            yield self._model
        finally:
            self._users -= 1
            if not self._users:
                self._empty()

    @contextmanager
    def on_first_rank(self, dist_info: DistInfo) -> Iterator[nn.Module]:
        """Fill the plain model of the first rank, under ZeRO 3 in CPU memory."""
        if self._zero.zero_stage != PARTITIONED:
            with self.gathered() as model:
                yield model
            return
        self.fill_first(dist_info)
        try:
            yield self._model
        finally:
            self._empty()

    def fill_first(self, dist_info: DistInfo) -> None:
        """Fill the plain model of the first rank in CPU memory, from the parts of all ranks."""
        for shell, (_, weight) in zip(self._shells, self._one_by_one(), strict=True):
            if dist_info.is_first:
                shell.data = weight.detach().to("cpu", copy=True)

    def _empty(self) -> None:
        for shell in self._shells:
            shell.data = shell.data.new_empty(0)

    @torch.no_grad()
    def fill(self) -> None:
        """Give each parameter of the plain model its whole weight from the twin."""
        for shell, (_, weight, shape) in zip(self._shells, self._named, strict=True):
            shell.data = self._whole(weight, shape)

    def to_send(self) -> DividedModel:
        """Return weights that ZeRO 3 has divided, gathered in groups of `GATHERED_BYTES`."""
        return DividedModel(self._model, self._device, self._one_by_one, self.gathered)

    def _one_by_one(self) -> Iterator[tuple[str, Tensor]]:
        for group in _groups(self._named):
            divided = [weight for _, weight, _ in group]
            with deepspeed.zero.GatheredParameters(divided):
                yield from ((name, weight.data) for name, weight, _ in group)

    def _whole(self, parameter: Tensor, shape: torch.Size) -> Tensor:
        if self._zero.zero_stage == PARTITIONED:
            with deepspeed.zero.GatheredParameters([parameter]):
                return parameter.data.clone()
        if (dimension := cut_dimension(parameter, shape)) is None:
            return parameter.data.clone()  # a clone: views of a flat buffer cannot be saved
        parts = [torch.empty_like(parameter) for _ in range(self._zero.tensor_parallel_size)]
        mine = parameter.data.contiguous()
        dist.all_gather(parts, mine, group=groups.get_tensor_model_parallel_group())
        return torch.cat(parts, dim=dimension)


def _groups(named: Sequence[Named]) -> Iterator[list[Named]]:
    """Yield neighbours that have at most `GATHERED_BYTES` together, or one larger weight."""
    group: list[Named] = []
    used = 0
    for each in named:
        size = each[2].numel() * each[1].dtype.itemsize
        if group and used + size > GATHERED_BYTES:
            yield group
            group, used = [], 0
        group.append(each)
        used += size
    if group:
        yield group
