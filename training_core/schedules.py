"""Learning-rate schedules: functions from the progress after the warm-up to a factor in [0, 1]."""

from __future__ import annotations

import math
from collections.abc import Callable


def constant(progress: float, *, floor: float, decay_fraction: float) -> float:
    """Stay at the peak."""
    del progress, floor, decay_fraction
    return 1.0


def linear(progress: float, *, floor: float, decay_fraction: float) -> float:
    """Fall linearly to `floor`."""
    del decay_fraction
    return floor + (1.0 - floor) * (1.0 - progress)


def cosine(progress: float, *, floor: float, decay_fraction: float) -> float:
    """Fall along half a cosine to `floor`.

    Source:
        Loshchilov & Hutter 2017, eq. 5, https://arxiv.org/abs/1608.03983, without restarts.
    """
    del decay_fraction
    return floor + (1.0 - floor) * (1.0 + math.cos(math.pi * progress)) / 2


def wsd(progress: float, *, floor: float, decay_fraction: float) -> float:
    """Stay at the peak, then fall linearly to `floor` over the last `decay_fraction`.

    Source:
        Warmup-stable-decay: Hu et al. 2024 (MiniCPM), §4, https://arxiv.org/abs/2404.06395; the
        linear decay: Hägele et al. 2024, §3, https://arxiv.org/abs/2405.18392
    """
    left = (1.0 - progress) / decay_fraction if decay_fraction > 0 else 1.0
    return floor + (1.0 - floor) * min(1.0, left)


SCHEDULES: dict[str, Callable[..., float]] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "wsd": wsd,
}
FLOORS = {"constant": 1.0, "linear": 0.0, "cosine": 0.1, "wsd": 0.0}
"""Default floor of each schedule, as a fraction of the peak."""


def learning_rate_factor(
    name: str,
    *,
    warmup_steps: int,
    total_steps: int,
    min_ratio: float | None = None,
    decay_fraction: float = 0.1,
) -> Callable[[int], float]:
    """Build warm-up followed by the schedule `name`: step (0-based) -> factor in [0, 1].

    Args:
        name: a key of `SCHEDULES`.
        warmup_steps: steps over which the factor rises linearly from 1 / warmup_steps to 1.
        total_steps: step at which the schedule ends.
        min_ratio: the floor, in [0, 1]; None uses the default of the schedule.
        decay_fraction: share of `total_steps`, in (0, 1], in which `wsd` falls.
    """
    decay = SCHEDULES[name]
    floor = FLOORS[name] if min_ratio is None else min_ratio
    steps_after = max(1, total_steps - warmup_steps)
    share = min(1.0, decay_fraction * total_steps / steps_after)  # of the steps after the warm-up

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        progress = min(1.0, (step - warmup_steps) / steps_after)
        return decay(progress, floor=floor, decay_fraction=share)

    return factor
