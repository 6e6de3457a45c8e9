"""Reward models and critics: a body with one output. Shapes: B rows, T tokens, S sequences."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training_core.models.causal_lm import hidden_states
from training_core.models.parts import head_outputs, scalar_head
from training_core.types import Batch


def token_values(model: nn.Module, batch: Batch) -> Tensor:
    """Value before each token: the head's output one position earlier.

    Args:
        model: an `AutoModelForSequenceClassification` with one label.
        batch: [B, T], one sequence per row.

    Returns:
        [B, T]; zero where `loss_mask` is not set.
    """
    outputs = head_outputs(scalar_head(model), hidden_states(model, batch))
    values = torch.cat([torch.zeros_like(outputs[:, :1]), outputs[:, :-1]], dim=1)
    return values.masked_fill(~batch.loss_mask, 0.0)


def sequence_scores(model: nn.Module, batch: Batch) -> Tensor:
    """Score of each sequence: the head's output at its last token.

    Args:
        model: an `AutoModelForSequenceClassification` with one label.
        batch: [B, T].

    Returns:
        [S], equal to the model's own `logits[:, 0]`.
    """
    return head_outputs(scalar_head(model), hidden_states(model, batch)[batch.ends()])
