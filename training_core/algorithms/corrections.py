"""Weights that correct for the gap between sampler and trainer. Shapes: B sequences, T tokens.

The sampler computes in another precision, with other kernels, or with older weights, so its
distribution mu is not quite the trainer's pi_old. A correction turns

    d = log pi_old - log mu        of each sampled token

into a weight [B, T] without gradient, which multiplies the policy loss. Rejected tokens have weight
0; they still count in the average.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

LARGEST_LOG_RATIO = 20.0


def tis_token(log_ratios: Tensor, mask: Tensor, *, max_ratio: float) -> Tensor:
    """Truncated importance sampling of each token.

        w_t = min(exp(d_t), max_ratio)

    Args:
        log_ratios: [B, T].
        mask: [B, T] bool.
        max_ratio: > 1.

    Returns:
        [B, T], zero outside the mask.

    Source:
        Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training",
        https://fengyao.notion.site/off-policy-rl
    """
    return _exp(log_ratios).clamp(max=max_ratio).masked_fill(~mask, 0.0)


def tis_sequence(log_ratios: Tensor, mask: Tensor, *, max_ratio: float) -> Tensor:
    """Truncated importance sampling of whole responses: unbiased but for the truncation.

        w_t = min(exp(sum of d over the response), max_ratio)

    Args:
        log_ratios: [B, T].
        mask: [B, T] bool.
        max_ratio: > 1.

    Returns:
        [B, T], zero outside the mask.

    Source:
        Liu et al. 2025, "When Speed Kills Stability", section on sequence-level TIS,
        https://richardli.xyz/rl-collapse
    """
    weights = _exp(_sums(log_ratios, mask)).clamp(max=max_ratio)
    return weights.expand_as(log_ratios).masked_fill(~mask, 0.0)


def icepop(log_ratios: Tensor, mask: Tensor, *, low: float, high: float) -> Tensor:
    """IcePop: tokens whose ratio is out of range are rejected, the others keep their weight.

        w_t = exp(d_t) if low <= exp(d_t) <= high, else 0

    Args:
        log_ratios: [B, T].
        mask: [B, T] bool.
        low: in (0, 1).
        high: > 1.

    Returns:
        [B, T], zero outside the mask.

    Source:
        Ling team 2025, section 3.2, https://arxiv.org/abs/2510.18855
    """
    ratios = _exp(log_ratios)
    return ratios.masked_fill((ratios < low) | (ratios > high) | ~mask, 0.0)


def sequence_mask(log_ratios: Tensor, mask: Tensor, *, max_ratio: float) -> Tensor:
    """Masked importance sampling: responses with a large ratio are rejected, not truncated.

        w_t = w if w <= max_ratio, else 0;  w = exp(sum of d over the response)

    Args:
        log_ratios: [B, T].
        mask: [B, T] bool.
        max_ratio: > 1.

    Returns:
        [B, T], zero outside the mask.

    Source:
        Liu et al. 2025, "When Speed Kills Stability", section on sequence-level MIS,
        https://richardli.xyz/rl-collapse
    """
    weights = _exp(_sums(log_ratios, mask)).expand_as(log_ratios)
    return weights.masked_fill((weights > max_ratio) | ~mask, 0.0)


def geometric_mask(log_ratios: Tensor, mask: Tensor, *, low: float, high: float) -> Tensor:
    """Rejection by the geometric mean of the ratios, which does not grow with the length.

        w_t = 1 if low <= exp(mean of d over the response) <= high, else 0

    Args:
        log_ratios: [B, T].
        mask: [B, T] bool.
        low: in (0, 1).
        high: > 1.

    Returns:
        [B, T], zero outside the mask.

    Source:
        Geometric rejection sampling (Geo-RS) of verl's rollout correction; Liu et al. 2025,
        https://richardli.xyz/rl-collapse
    """
    means = _sums(log_ratios, mask) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    ratios = _exp(means)
    is_kept = (ratios >= low) & (ratios <= high)
    return (is_kept & mask).to(log_ratios.dtype)


def _exp(log_ratios: Tensor) -> Tensor:
    return log_ratios.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()


def _sums(log_ratios: Tensor, mask: Tensor) -> Tensor:
    return log_ratios.masked_fill(~mask, 0.0).sum(dim=1, keepdim=True)


CORRECTIONS: dict[str, Callable[..., Tensor]] = {
    "tis_token": tis_token,
    "tis_sequence": tis_sequence,
    "icepop": icepop,
    "sequence_mask": sequence_mask,
    "geometric_mask": geometric_mask,
}
"""Name -> (log-ratios [B, T], mask [B, T], **hyperparameters) -> weights [B, T]."""
