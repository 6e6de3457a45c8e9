"""Cross-entropy on the trained tokens."""

from __future__ import annotations

from typing import Any

from training_core.models.causal_lm import logprobs_and_entropy
from training_core.types import Batch, Loss, Mean, mean_of


def supervised(model: Any, batch: Batch) -> Loss:
    """Negative log-likelihood of the trained tokens, in nats, counted per token.

    Args:
        model: a causal language model.
        batch: [B, T].
    """
    logprobs, entropy = logprobs_and_entropy(model, batch)
    metrics = {
        "entropy": mean_of(entropy, batch.loss_mask),
        "tokens": Mean(float(batch.num_tokens), 1.0),
    }
    return Loss(-logprobs.sum(), float(batch.loss_mask.sum()), metrics)
