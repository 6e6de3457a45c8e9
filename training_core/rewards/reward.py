"""Rewards: a number per rollout, or `Unscored(reason)`. A failure never becomes 0.0."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

from training_core.errors import DataError
from training_core.types import Rollout, ScoredRollout


@dataclass(frozen=True)
class Unscored:
    """Why a rollout has no reward; it is dropped and counted."""

    reason: str


@dataclass(frozen=True)
class Scored:
    """A reward with the numbers behind it.

    Attributes:
        reward: the number that training uses.
        components: further numbers by name, e.g. one of each reward in a sum; only reported.
    """

    reward: float
    components: Mapping[str, float]


RewardResult = float | Scored | Unscored


class Reward(Protocol):
    """Anything that scores rollouts."""

    def __call__(self, rollouts: Sequence[Rollout]) -> Sequence[RewardResult]:
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
        DataError: if a larger share is unscored; the message counts the reasons and shows the
            first.
    """
    results = [checked(r) for r in reward(rollouts)]
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
            f"the largest allowed share is {unscored_limit}: {counted}. "
            f"The first is of prompt {prompt}: {first}"
        )
    return [
        ScoredRollout(rollout, result.reward, result.components)
        for rollout, result in zip(rollouts, results, strict=True)
        if isinstance(result, Scored)
    ]


def checked(result: RewardResult) -> Scored | Unscored:
    """Return a result with its components; one that is NaN or infinite is no reward."""
    if isinstance(result, Unscored):
        return result
    scored = result if isinstance(result, Scored) else Scored(result, {})
    for name, value in {"the reward": scored.reward, **scored.components}.items():
        if not math.isfinite(value):
            return Unscored(f"{name} is {value}")
    return scored


def component_means(scored: Sequence[ScoredRollout]) -> dict[str, float]:
    """Return the mean of each component, e.g. `component_length`; empty if there are none."""
    values: dict[str, list[float]] = {}
    for item in scored:
        for name, value in item.components.items():
            values.setdefault(f"component_{name}", []).append(value)
    return {name: fmean(found) for name, found in sorted(values.items())}
