"""Rewards: a number per rollout, or `Unscored(reason)`. A failure never becomes 0.0."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from training_core.errors import DataError
from training_core.types import Rollout, ScoredRollout


@dataclass(frozen=True)
class Unscored:
    """Why a rollout has no reward; it is dropped and counted."""

    reason: str


class Reward(Protocol):
    """Anything that scores rollouts."""

    def __call__(self, rollouts: Sequence[Rollout]) -> Sequence[float | Unscored]:
        """Score `rollouts`, one result each, in their order."""
        ...


def score(
    reward: Reward, rollouts: Sequence[Rollout], *, unscored_limit: float
) -> list[ScoredRollout]:
    """Score rollouts and drop those that could not be scored.

    Args:
        reward: scores the rollouts.
        rollouts: rollouts to score.
        unscored_limit: largest tolerated share of unscored rollouts.

    Returns:
        The scored rollouts, in order.

    Raises:
        DataError: if more are unscored; the message counts the reasons and shows the first.
    """
    results = [_finite(r) for r in reward(rollouts)]
    unscored = [
        (rollout.prompt.id, result.reason)
        for rollout, result in zip(rollouts, results, strict=True)
        if isinstance(result, Unscored)
    ]
    reasons = Counter(reason for _, reason in unscored)
    if len(unscored) > unscored_limit * len(rollouts):
        prompt, first = unscored[0]
        counted = "; ".join(f"{count}x {reason}" for reason, count in reasons.most_common(3))
        raise DataError(
            f"{len(unscored)} of {len(rollouts)} rollouts have no reward, "
            f"allowed is a share of {unscored_limit}: {counted}. "
            f"The first is of prompt {prompt}: {first}"
        )
    return [
        ScoredRollout(rollout, result)
        for rollout, result in zip(rollouts, results, strict=True)
        if not isinstance(result, Unscored)
    ]


def _finite(result: float | Unscored) -> float | Unscored:
    if isinstance(result, Unscored) or math.isfinite(result):
        return result
    return Unscored(f"the reward is {result}")
