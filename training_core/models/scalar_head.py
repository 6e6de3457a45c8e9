"""Reward models and critics: a backbone with one output. Shapes: B sequences, T tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from training_core.models.causal_lm import hidden_states
from training_core.types import Batch


def token_values(model: Any, batch: Batch) -> Tensor:
    """Value before each token was chosen: the head's output one position earlier.

    Args:
        model: an `AutoModelForSequenceClassification` with one label.
        batch: [B, T].

    Returns:
        [B, T]; zero where `loss_mask` is not set.
    """
    outputs = _full(model.score(hidden_states(model, batch)).squeeze(-1))
    values = torch.cat([torch.zeros_like(outputs[:, :1]), outputs[:, :-1]], dim=1)
    return values.masked_fill(~batch.loss_mask, 0.0)


def sequence_scores(model: Any, batch: Batch) -> Tensor:
    """Score of each sequence: the head's output at the last attended token.

    Args:
        model: an `AutoModelForSequenceClassification` with one label.
        batch: [B, T].

    Returns:
        [B], the same as the model's own `logits[:, 0]`.
    """
    hidden = hidden_states(model, batch)
    last = batch.attention_mask.long().sum(dim=1) - 1
    rows = torch.arange(len(last), device=last.device)
    return _full(model.score(hidden[rows, last]).squeeze(-1))


def _full(outputs: Tensor) -> Tensor:
    """At least single precision."""
    return outputs if outputs.dtype == torch.float64 else outputs.float()
