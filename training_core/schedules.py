"""Learning-rate schedules: functions from the step (0-based) to a factor in [0, 1]."""

from __future__ import annotations

import math
from collections.abc import Callable


def constant(progress: float) -> float:
    """Stay at the peak."""
    del progress
    return 1.0


def linear(progress: float) -> float:
    """Fall in a line to zero."""
    return 1.0 - progress


def cosine(progress: float) -> float:
    """Fall along half a cosine to a tenth of the peak.

    Source:
        Loshchilov & Hutter 2017, eq. 5, https://arxiv.org/abs/1608.03983, without restarts.
    """
    return 0.1 + 0.9 * (1.0 + math.cos(math.pi * progress)) / 2


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
}


def learning_rate_factor(
    name: str, *, warmup_steps: int, total_steps: int
) -> Callable[[int], float]:
    """Build warm-up followed by the schedule `name`.

    Args:
        name: a key of `SCHEDULES`.
        warmup_steps: steps over which the factor rises in a line from 1 / warmup_steps to 1.
        total_steps: where the schedule ends.
    """
    decay = SCHEDULES[name]

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
        return decay(min(1.0, progress))

    return factor
