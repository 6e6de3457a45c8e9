"""From losses per token to the loss of an optimizer step. Shapes: B sequences, T tokens.

Each function returns a sum and a count. The training loop adds both over the micro-batches of an
optimizer step and divides once, so the loss does not depend on how the step was cut. A response
without a trained token counts in neither.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from training_core.algorithms.masking import masked_sum

SumAndCount = tuple[Tensor, float]


def token_mean(losses: Tensor, mask: Tensor, max_tokens: int) -> SumAndCount:
    """Average over all tokens of the step: each token counts the same.

        sum of all tokens / number of tokens

    Args:
        losses: [B, T].
        mask: [B, T] bool.
        max_tokens: not used.

    Returns:
        sum [] and count.

    Source:
        Yu et al. 2025 (DAPO), section 3.3, https://arxiv.org/abs/2503.14476
    """
    del max_tokens
    return masked_sum(losses, mask), float(mask.sum())


def sequence_mean(losses: Tensor, mask: Tensor, max_tokens: int) -> SumAndCount:
    """Average over the responses of each one's mean: each response counts the same.

        mean over responses of (sum of its tokens / its length)

    A token of a long response counts less than one of a short response.

    Args:
        losses: [B, T].
        mask: [B, T] bool.
        max_tokens: not used.

    Returns:
        sum [] and count.

    Source:
        Shao et al. 2024 (DeepSeekMath), eq. 3, https://arxiv.org/abs/2402.03300
    """
    del max_tokens
    lengths = mask.sum(dim=1)
    sums = losses.masked_fill(~mask, 0.0).sum(dim=1)
    return (sums / lengths.clamp(min=1)).sum(), float((lengths > 0).sum())


def sequence_sum_mean(losses: Tensor, mask: Tensor, max_tokens: int) -> SumAndCount:
    """Average over the responses of each one's sum: the policy gradient of whole responses.

        mean over responses of (sum of its tokens)

    Args:
        losses: [B, T].
        mask: [B, T] bool.
        max_tokens: not used.

    Returns:
        sum [] and count.

    Source:
        Williams 1992 (REINFORCE); `seq-mean-token-sum` in verl
    """
    del max_tokens
    return masked_sum(losses, mask), float(mask.any(dim=1).sum())


def constant_length(losses: Tensor, mask: Tensor, max_tokens: int) -> SumAndCount:
    """Average over the responses of each one's sum, divided by one constant length.

        mean over responses of (sum of its tokens / max_tokens)

    It has the direction of `sequence_sum_mean` at the scale of a mean over tokens.

    Args:
        losses: [B, T].
        mask: [B, T] bool.
        max_tokens: > 0, limit of a response.

    Returns:
        sum [] and count.

    Source:
        Liu et al. 2025 (Dr. GRPO), section 3.2, https://arxiv.org/abs/2503.20783
    """
    return masked_sum(losses, mask) / max_tokens, float(mask.any(dim=1).sum())


AGGREGATIONS: dict[str, Callable[[Tensor, Tensor, int], SumAndCount]] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "sequence_sum_mean": sequence_sum_mean,
    "constant_length": constant_length,
}
"""Name -> (losses [B, T], mask [B, T], limit of a response in tokens) -> sum, count."""
