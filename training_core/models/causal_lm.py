"""Policies and references: log-probabilities of given tokens.

Shapes: B sequences, T tokens, N trained tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from training_core.algorithms.logprobs import token_logprobs
from training_core.types import Batch


def hidden_states(model: Any, batch: Batch) -> Tensor:
    """Run the backbone of a Hugging Face model with a head.

    Positions are counted over attended tokens, so that padding never moves them.

    Returns:
        [B, T, H].
    """
    position_ids = (batch.attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)
    output = model.base_model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask.long(),
        position_ids=position_ids,
        use_cache=False,
    )
    return output.last_hidden_state


def logprobs_and_entropy(
    model: Any, batch: Batch, *, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-probability of each trained token, and entropy where it was predicted, in nats.

    Args:
        model: a causal language model.
        batch: [B, T].
        temperature: of the distribution that is meant.

    Returns:
        logprobs [B, T] and entropy [B, T]; zero where `loss_mask` is not set.
    """
    predicts = batch.loss_mask[:, 1:]
    hidden = hidden_states(model, batch)[:, :-1][predicts]
    head = model.get_output_embeddings()
    logprobs, entropy = token_logprobs(
        hidden,
        head.weight,
        batch.input_ids[:, 1:][predicts],
        head_bias=getattr(head, "bias", None),
        temperature=temperature,
    )
    return _spread(logprobs, batch.loss_mask), _spread(entropy, batch.loss_mask)


def logprobs(model: Any, batch: Batch, *, temperature: float = 1.0) -> Tensor:
    """Log-probabilities [B, T] alone; see `logprobs_and_entropy`."""
    return logprobs_and_entropy(model, batch, temperature=temperature)[0]


def _spread(values: Tensor, mask: Tensor) -> Tensor:
    zeros = torch.zeros(mask.shape, dtype=values.dtype, device=values.device)
    return zeros.masked_scatter(mask, values)
