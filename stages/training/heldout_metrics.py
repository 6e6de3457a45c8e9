"""Metrics of a model on held-out data, without gradients."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from stages.batches.micro_batches import Examples, Pairs, cut, over_all
from training_core.models.causal_lm import logprobs
from training_core.models.language_model import LanguageModel
from training_core.models.scalar_head import sequence_scores


@torch.no_grad()
def mean_loss(model: LanguageModel, examples: Examples, *, budget_tokens: int) -> float:
    """Negative log-likelihood per trained token, in nats; NaN without examples."""
    total, count = 0.0, 0
    for _, batch in cut(examples, range(len(examples.lengths)), budget_tokens):
        total -= float(logprobs(model, batch).double().sum())
        count += int(batch.loss_mask.sum())
    return total / count if count else float("nan")


def before_and_after(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Join metrics from before training, as `…_before`, and after it."""
    return {**{f"{name}_before": value for name, value in before.items()}, **after}


def pair_scores(model: LanguageModel, pairs: Pairs, *, budget_tokens: int) -> torch.Tensor:
    """Score both sides of each pair with a reward model.

    Returns:
        [number of pairs, 2] float64 on the CPU: chosen, rejected.
    """
    return over_all(
        pairs,
        lambda batch: sequence_scores(model, batch.batch),
        budget_tokens=budget_tokens,
        columns=2,
    )


def pair_metrics(scores: torch.Tensor) -> Mapping[str, float]:
    """Accuracy and mean margin of scores [N, 2] (chosen, rejected), N > 0."""
    margins = scores[:, 0] - scores[:, 1]
    return {"accuracy": float((margins > 0).double().mean()), "margin": float(margins.mean())}
