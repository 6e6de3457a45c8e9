"""Per-token value losses, not yet reduced. Shapes: B sequences, T tokens."""

from __future__ import annotations

from torch import Tensor


def clipped_value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float
) -> Tensor:
    """Half the squared error, with the change from the old value clipped.

        v_clip = v_old + clamp(v - v_old, -clip, clip)
        loss = max((v - R)^2, (v_clip - R)^2) / 2

    Args:
        values: [B, T]; with gradient.
        old_values: [B, T] values when the experience was computed.
        returns: [B, T].
        clip: > 0, in units of the return.

    Returns:
        [B, T].

    Source:
        Schulman et al. 2017, reference implementation; https://arxiv.org/abs/2005.12729, section 3.
    """
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return ((values - returns) ** 2).maximum((clipped - returns) ** 2) / 2
