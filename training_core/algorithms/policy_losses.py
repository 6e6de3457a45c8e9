"""Per-token policy losses, not yet reduced. Shapes: B sequences, T tokens."""

from __future__ import annotations

from torch import Tensor


def ppo_clip(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """Clipped surrogate objective of PPO, negated.

        r = exp(logprobs - old_logprobs)
        loss = -min(r * A, clip(r, 1 - clip_low, 1 + clip_high) * A)

    Args:
        logprobs: [B, T] under the trained policy; with gradient.
        old_logprobs: [B, T] under the policy with which the experience was computed.
        advantages: [B, T].
        clip_low: > 0.
        clip_high: > 0; with a value above `clip_low` it is DAPO's clip-higher.

    Returns:
        loss [B, T], and is_clipped [B, T] bool: where the clip removed the gradient.

    Source:
        Schulman et al. 2017, eq. 7, https://arxiv.org/abs/1707.06347; clip-higher: https://arxiv.org/abs/2503.14476
    """
    # exp(20) is far outside every clip range, and it prevents 0 * inf in the gradient.
    ratio = (logprobs - old_logprobs).clamp(-20, 20).exp()
    plain = ratio * advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    return -plain.minimum(clipped), clipped < plain
