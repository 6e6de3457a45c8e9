"""Sums and means over masked positions. Shapes: B sequences, T tokens."""

from __future__ import annotations

from torch import Tensor


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum `values` where `mask` is set; a NaN outside the mask has no effect.

    Args:
        values: any shape, floating.
        mask: same shape, bool.

    Returns:
        Scalar tensor.
    """
    # Multiplication by the mask would keep a NaN, because NaN * 0 = NaN (OpenRLHF#1240).
    return values.masked_fill(~mask, 0.0).sum()


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Average `values` where `mask` is set; 0 for an empty mask.

    Args:
        values: any shape, floating.
        mask: same shape, bool.

    Returns:
        Scalar tensor.
    """
    return masked_sum(values, mask) / mask.sum().clamp(min=1)


def whiten(values: Tensor, mask: Tensor, *, epsilon: float = 1e-8) -> Tensor:
    """Shift and scale `values` to mean 0 and (biased) variance 1 over the mask; 0 elsewhere.

    Args:
        values: [B, T] floating.
        mask: [B, T] bool.
        epsilon: lower limit of the variance.

    Returns:
        [B, T], same dtype as `values`.

    Source:
        Advantage normalisation of PPO implementations; Huang et al. 2022, "The 37 Implementation
        Details of PPO", no. 7.
    """
    mean = masked_mean(values, mask)
    variance = masked_mean((values - mean) ** 2, mask)
    return ((values - mean) * variance.clamp(min=epsilon).rsqrt()).masked_fill(~mask, 0.0)
