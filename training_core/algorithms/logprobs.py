"""Token log-probabilities and entropy from hidden states, without [N, V] logits in memory.

Shapes: N positions that are trained, H hidden, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def token_logprobs(
    hidden: Tensor,
    head_weight: Tensor,
    targets: Tensor,
    *,
    head_bias: Tensor | None = None,
    temperature: float = 1.0,
    chunk_positions: int = 1024,
) -> tuple[Tensor, Tensor]:
    """Compute log p(target | position) and the entropy of the distribution, in nats.

        logits = (hidden @ W^T + b) / temperature
        logprob = logits[target] - logsumexp(logits)
        entropy = logsumexp(logits) - sum_v softmax(logits)_v * logits_v

    Logits exist for `chunk_positions` rows at a time, and again, chunk by chunk, in the backward
    pass.

    Args:
        hidden: [N, H] final hidden states of the positions that predict `targets`.
        head_weight: [V, H] output embedding.
        targets: [N] int64 token ids.
        head_bias: [V] or None.
        temperature: > 0, the sampling temperature that the log-probabilities refer to.
        chunk_positions: rows whose logits are held at once.

    Returns:
        logprobs [N] and entropy [N], float32 (float64 for float64 inputs).

    Source:
        Temperature must match sampling: OpenRLHF#857, TRL#3029.
    """
    pieces = [
        _chunk(
            hidden[i : i + chunk_positions],
            head_weight,
            head_bias,
            targets[i : i + chunk_positions],
            temperature,
        )
        for i in range(0, len(targets), chunk_positions)
    ]
    if not pieces:
        empty = hidden.sum(dim=-1)
        return empty, empty
    logprobs, entropies = zip(*pieces, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _chunk(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    if not torch.is_grad_enabled():
        return _logprobs_of_chunk(hidden, weight, bias, targets, temperature)
    return checkpoint(
        _logprobs_of_chunk, hidden, weight, bias, targets, temperature, use_reentrant=False
    )


def _logprobs_of_chunk(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    logits = torch.nn.functional.linear(hidden, weight, bias)
    logits = (logits if logits.dtype == torch.float64 else logits.float()) / temperature
    log_normaliser = logits.logsumexp(dim=-1)
    logprobs = logits.gather(-1, targets[:, None]).squeeze(-1) - log_normaliser
    with torch.no_grad():  # a metric; an entropy bonus would need the gradient
        probabilities = (logits - log_normaliser[:, None]).exp()
        entropy = log_normaliser - (probabilities * logits).sum(dim=-1)
    return logprobs, entropy
