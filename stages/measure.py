"""Held-out measures of a model, without gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stages.batches import cut_pairs
from training_core.data.batching import collate, cut_by_tokens
from training_core.models.causal_lm import logprobs
from training_core.models.scalar_head import sequence_scores
from training_core.types import Example, Pair


@torch.no_grad()
def mean_loss(model: Any, examples: Sequence[Example], *, budget_tokens: int, pad_id: int) -> float:
    """Negative log-likelihood per trained token, in nats; NaN without examples."""
    total, count = 0.0, 0
    for cut in cut_by_tokens([len(e) for e in examples], budget_tokens):
        batch = collate([examples[i] for i in cut], pad_id, model.device)
        total -= float(logprobs(model, batch).double().sum())
        count += int(batch.loss_mask.sum())
    return total / count if count else float("nan")


@torch.no_grad()
def pair_scores(
    model: Any, pairs: Sequence[Pair], *, budget_tokens: int, pad_id: int
) -> torch.Tensor:
    """Reward model's scores of both sides of each pair.

    Returns:
        [number of pairs, 2] float32 on the CPU: chosen, rejected; in no particular order of pairs.
    """
    batches = cut_pairs(pairs, range(len(pairs)), budget_tokens, pad_id, model.device)
    scores = [torch.stack(sequence_scores(model, b.batch).chunk(2), dim=1).cpu() for b in batches]
    return torch.cat(scores) if scores else torch.empty(0, 2)
