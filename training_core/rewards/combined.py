"""Several rewards as one: a weighted sum, or any function of their values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from training_core.rewards.reward import Reward, RewardResult, Scored, Unscored, checked
from training_core.types import Rollout

Combine = Callable[[Rollout, Mapping[str, float]], float | Unscored]
"""(rollout, value of each part by its label) -> the reward."""


class CombinedReward:
    """Scores rollouts with every part, and combines the values.

    The result has the value of each part as a component. If a part cannot score a rollout, the
    rollout is unscored; the reason is that of the part, after its label.

    Parts that wait, e.g. for a service, are asked all at once. Meanwhile the others are computed in
    this thread, one after the other: a model is on the GPU of this thread, and code of users need
    not expect several threads.

    Args:
        parts: the rewards by label, in order.
        combine: makes one number of the values of a rollout.
        waiting: labels of the parts that wait.
    """

    def __init__(
        self, parts: Mapping[str, Reward], combine: Combine, *, waiting: Collection[str] = ()
    ) -> None:
        self._parts = parts
        self._combine = combine
        self._waiting = [label for label in parts if label in waiting]

    def __call__(self, rollouts: Sequence[Rollout]) -> list[RewardResult]:
        """Score `rollouts`; see `Reward`. Of several errors the one of the first part is raised."""
        found = self._results(rollouts)
        rows = zip(*found.values(), strict=True)
        return [
            self._of(rollout, dict(zip(found, row, strict=True)))
            for rollout, row in zip(rollouts, rows, strict=True)
        ]

    def _results(self, rollouts: Sequence[Rollout]) -> dict[str, Sequence[RewardResult]]:
        """Return the results of each part, in the order of the parts."""
        here = [label for label in self._parts if label not in self._waiting]
        with ThreadPoolExecutor(max(1, len(self._waiting))) as pool:
            asked = {label: pool.submit(self._parts[label], rollouts) for label in self._waiting}
            computed = {label: self._parts[label](rollouts) for label in here}
            return {
                label: asked[label].result() if label in asked else computed[label]
                for label in self._parts
            }

    def _of(self, rollout: Rollout, results: Mapping[str, RewardResult]) -> RewardResult:
        values: dict[str, float] = {}
        details: dict[str, float] = {}
        for label, result in results.items():
            part = checked(result)
            if isinstance(part, Unscored):
                return Unscored(f"{label}: {part.reason}")
            values[label] = part.reward
            details |= {f"{label}_{name}": value for name, value in part.components.items()}
        combined = self._combine(rollout, values)
        return combined if isinstance(combined, Unscored) else Scored(combined, details | values)


def weighted_sum(weights: Mapping[str, float]) -> Combine:
    """Return the sum of weight times value, over the labels of `weights`."""
    return lambda _, values: sum(weights[label] * value for label, value in values.items())
