"""Any objective plus the load-balancing loss of a mixture of experts. Shapes: S sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from training_core.loop import Objective
from training_core.models.experts import routing, sequence_balance
from training_core.types import Batch, Loss, MicroBatch, mean_of

M = TypeVar("M", bound=MicroBatch)


def balanced(
    objective: Objective[M],
    coef: float,
    *,
    weights: Callable[[Batch], Tensor] | None = None,
) -> Objective[M]:
    """Add `coef` times the mean balance of the sequences to an objective.

    Args:
        objective: objective without balancing.
        coef: >= 0; 0 returns the objective unchanged.
        weights: batch -> [S], whose sum is the objective's count; None uses the number of trained
            tokens of each sequence.
    """
    if coef == 0:
        return objective

    def together(model: nn.Module, micro_batch: M) -> Loss:
        batch = micro_batch.batch
        with routing(model) as routed:
            loss = objective(model, micro_batch)
        balance = sequence_balance(routed, batch)
        weight = trained_tokens(batch) if weights is None else weights(batch)
        metrics = {**loss.metrics, "expert_balance": mean_of(balance)}
        return Loss(loss.total + coef * (weight * balance).sum(), loss.count, metrics)

    return together


def trained_tokens(batch: Batch) -> Tensor:
    """Return the number of trained tokens [S] of each sequence."""
    return batch.sequence_sums(batch.loss_mask.float())


def each_counts(share: float) -> Callable[[Batch], Tensor]:
    """Build weights that are `share` for every sequence, e.g. 1/2 for the sequences of pairs."""
    return lambda batch: torch.full((batch.num_sequences,), share, device=batch.input_ids.device)
