"""Objectives on pairs. Shapes: B pairs; a batch holds 2B rows, the chosen ones first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from training_core.models.causal_lm import logprobs
from training_core.models.scalar_head import sequence_scores
from training_core.types import Batch, Loss, Mean, mean_of


@dataclass(frozen=True)
class PairBatch:
    """Pairs as rows 0…B-1 (chosen) and B…2B-1 (rejected).

    Attributes:
        batch: [2B, T].
        ref_logprobs: [2B] summed log-probabilities under the reference; None for a reward model.
    """

    batch: Batch
    ref_logprobs: Tensor | None = None


def preference(
    loss: Callable[[Tensor, Tensor], Tensor], *, beta: float
) -> Callable[[Any, PairBatch], Loss]:
    """Build the objective of a preference loss, counted per pair.

    Args:
        loss: (logratio_chosen [B], logratio_rejected [B]) -> [B], see `PREFERENCE_LOSSES`.
        beta: scales the implicit rewards that are reported.
    """

    def objective(model: Any, pairs: PairBatch) -> Loss:
        if pairs.ref_logprobs is None:
            raise TypeError("a preference objective needs ref_logprobs")
        logratios = logprobs(model, pairs.batch).sum(dim=1) - pairs.ref_logprobs
        chosen, rejected = logratios.chunk(2)
        losses = loss(chosen, rejected)
        metrics = {
            "accuracy": mean_of((chosen > rejected).float()),
            "reward_chosen": mean_of(beta * chosen),
            "reward_rejected": mean_of(beta * rejected),
            "reward_margin": mean_of(beta * (chosen - rejected)),
            "tokens": Mean(float(pairs.batch.attention_mask.sum()), 1.0),
        }
        return Loss(losses.sum(), float(len(losses)), metrics)

    return objective


def pairwise_reward(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any, PairBatch], Loss]:
    """Build the objective of a reward model, counted per pair.

    Args:
        loss: (reward_chosen [B], reward_rejected [B]) -> [B].
    """

    def objective(model: Any, pairs: PairBatch) -> Loss:
        chosen, rejected = sequence_scores(model, pairs.batch).chunk(2)
        losses = loss(chosen, rejected)
        metrics = {
            "accuracy": mean_of((chosen > rejected).float()),
            "reward_margin": mean_of(chosen - rejected),
            "tokens": Mean(float(pairs.batch.attention_mask.sum()), 1.0),
        }
        return Loss(losses.sum(), float(len(losses)), metrics)

    return objective
