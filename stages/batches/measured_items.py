"""Measure the items of a dataset with a model, without gradients; the ranks share the work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from stages.batches.micro_batches import Collator
from training_core.data.batching import WithoutLoss, cut_by_tokens, share_of_rank
from training_core.dist_info import SINGLE_PROCESS, DistInfo
from training_core.distributed import all_gather_object
from training_core.models.computing import Computing

T = TypeVar("T")
R = TypeVar("R")


def measured(
    model: Computing,
    collator: Collator[T],
    function: Callable[[Any, T], R],
    *,
    budget_tokens: int,
    dist_info: DistInfo = SINGLE_PROCESS,
) -> list[tuple[list[int], R]]:
    """Measure every item once, in micro-batches.

    Args:
        model: computes `function(model, micro-batch)`.
        collator: the items.
        function: its result is sent to the other ranks, so it must be in CPU memory.
        budget_tokens: largest number of padded tokens in a micro-batch.
        dist_info: this process; each rank measures a share, and every rank must call this.

    Returns:
        (items, result) of each micro-batch. Both are the same on every rank, and for every number
        of ranks.
    """
    lengths = collator.lengths
    cuts = cut_by_tokens(lengths, budget_tokens)
    costs = [len(cut) * max(lengths[i] for i in cut) for cut in cuts]
    shares = share_of_rank(
        range(len(cuts)),
        costs,
        dist_info.rank,
        dist_info.world_size,
        even=model.computes_together,
    )
    found: dict[int, R] = {}
    with model.at_work():
        for share in shares:
            is_extra = isinstance(share, WithoutLoss)
            place = share.micro_batch if is_extra else share
            result = model.compute(function, collator(cuts[place]))
            if not is_extra:
                found[place] = result
    of_all = {place: r for part in all_gather_object(found, dist_info) for place, r in part.items()}
    return [(cut, of_all[place]) for place, cut in enumerate(cuts)]


def over_all(
    model: Computing,
    collator: Collator[T],
    function: Callable[[Any, T], Tensor],
    *,
    budget_tokens: int,
    columns: int,
    dist_info: DistInfo = SINGLE_PROCESS,
) -> Tensor:
    """Return some numbers for every item.

    Args:
        model: see `measured`.
        collator: the items.
        function: (model, micro-batch of b items) -> [columns * b], in the order of
            `collate_shared`.
        budget_tokens: see `measured`.
        columns: number of values per item.
        dist_info: see `measured`.

    Returns:
        [number of items, columns] float64 on the CPU.
    """

    def on_cpu(model: Any, micro_batch: T) -> Tensor:
        return function(model, micro_batch).double().cpu()

    found = torch.zeros(len(collator.lengths), columns, dtype=torch.float64)
    parts = measured(model, collator, on_cpu, budget_tokens=budget_tokens, dist_info=dist_info)
    for members, values in parts:
        found[members] = values.reshape(columns, -1).T
    return found
