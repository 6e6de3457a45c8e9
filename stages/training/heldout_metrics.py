"""Metrics of a model on held-out data, without gradients. Every rank must call them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from stages.batches.measured_items import measured, over_all
from stages.batches.micro_batches import Examples, Pairs
from training_core.dist_info import SINGLE_PROCESS, DistInfo
from training_core.models.causal_lm import logprobs
from training_core.models.computing import Computing
from training_core.models.scalar_head import sequence_scores
from training_core.objectives.preference import PairBatch
from training_core.types import Batch


def mean_loss(
    model: Computing,
    examples: Examples,
    *,
    budget_tokens: int,
    dist_info: DistInfo = SINGLE_PROCESS,
) -> float:
    """Negative log-likelihood per trained token, in nats; NaN without examples."""

    def total_and_count(model: nn.Module, batch: Batch) -> tuple[float, int]:
        return -float(logprobs(model, batch).double().sum()), int(batch.loss_mask.sum())

    parts = measured(
        model, examples, total_and_count, budget_tokens=budget_tokens, dist_info=dist_info
    )
    count = sum(count for _, (_, count) in parts)
    return sum(total for _, (total, _) in parts) / count if count else float("nan")


def before_and_after(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Join metrics from before training, as `…_before`, and after it."""
    return {**{f"{name}_before": value for name, value in before.items()}, **after}


def pair_scores(
    model: Computing, pairs: Pairs, *, budget_tokens: int, dist_info: DistInfo = SINGLE_PROCESS
) -> torch.Tensor:
    """Score both sides of each pair with a reward model.

    Returns:
        [number of pairs, 2] float64 on the CPU: chosen, rejected.
    """

    def scores(model: nn.Module, batch: PairBatch) -> torch.Tensor:
        return sequence_scores(model, batch.batch)

    return over_all(
        model, pairs, scores, budget_tokens=budget_tokens, columns=2, dist_info=dist_info
    )


def pair_metrics(scores: torch.Tensor) -> Mapping[str, float]:
    """Accuracy and mean margin of scores [N, 2] (chosen, rejected), N > 0."""
    margins = scores[:, 0] - scores[:, 1]
    return {"accuracy": float((margins > 0).double().mean()), "margin": float(margins.mean())}
