"""Per-token value losses, not yet reduced. Shapes: B sequences, T tokens."""

from __future__ import annotations

from collections.abc import Callable

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


def squared_value_loss(values: Tensor, old_values: Tensor, returns: Tensor) -> Tensor:
    """Half the squared error.

        loss = (v - R)^2 / 2

    Args:
        values: [B, T]; with gradient.
        old_values: [B, T]; not used.
        returns: [B, T].

    Returns:
        [B, T].

    Source:
        Schulman et al. 2017, eq. 9, https://arxiv.org/abs/1707.06347; Andrychowicz et al. 2021
        found no gain from clipping: https://arxiv.org/abs/2006.05990, section 3.3
    """
    del old_values
    return (values - returns) ** 2 / 2


VALUE_LOSSES: dict[str, Callable[..., Tensor]] = {
    "clipped": clipped_value_loss,
    "squared": squared_value_loss,
}
"""Name -> (values, old values, returns, **hyperparameters) -> loss [B, T]."""
