"""When the reward that is optimised and an independent judge part.

A policy that is drawn to the errors of its reward gains reward while it becomes worse (Gao et al.
2023, https://arxiv.org/abs/2210.10760).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from math import comb
from statistics import fmean

from stages.sampling.intervals import LEVEL, mean_interval
from training_core.engine.protocol import StateDict

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JudgedPolicy:
    """One evaluation of the policy.

    Attributes:
        done: rounds before it.
        reward: mean held-out reward.
        of_judge: the judge's mean reward of each prompt, by the prompt's id.
    """

    done: int
    reward: float
    of_judge: Mapping[str, float]

    @property
    def mean(self) -> float:
        """The judge's mean reward over all prompts."""
        return fmean(self.of_judge.values())


def have_parted(then: JudgedPolicy, now: JudgedPolicy, *, evaluations: int) -> bool:
    """Whether the reward has risen and the judge's has fallen beyond noise.

    The fall is a one-sided paired t test over the prompts that the judge has scored both times. Its
    level is divided by the number of pairs of evaluations (Bonferroni): however the best of them is
    chosen, at most 2.5 % of the runs whose responses stay as good have a false alarm.

    Args:
        then: the evaluation that the judge liked best so far.
        now: a later one.
        evaluations: number of evaluations in the run.
    """
    both = then.of_judge.keys() & now.of_judge.keys()
    falls = [now.of_judge[id_] - then.of_judge[id_] for id_ in sorted(both)]
    if now.reward <= then.reward or not falls:
        return False
    ends = mean_interval(falls, LEVEL / comb(evaluations, 2))
    return ends is not None and ends[1] < 0


class Overoptimisation:
    """Compares each evaluation with the one that the judge liked best so far.

    It is a part of every checkpoint.

    Args:
        evaluations: number of evaluations in the run, at least 2.
        stops: whether the training ends where they part.
    """

    def __init__(self, evaluations: int, *, stops: bool) -> None:
        self._evaluations, self._stops = evaluations, stops
        self._best: JudgedPolicy | None = None
        self.parted_at: int | None = None

    @property
    def ends_at(self) -> int | None:
        """The round after which the training ends because they have parted; None: it goes on."""
        return self.parted_at if self._stops else None

    def takes(self, now: JudgedPolicy) -> bool:
        """Look at an evaluation; the first alarm of a run is logged.

        Returns:
            Whether reward and judge have parted.
        """
        best = self._best
        if best is None or now.mean > best.mean:
            self._best = now
            return False
        if not have_parted(best, now, evaluations=self._evaluations):
            return False
        if self.parted_at is None:
            self.parted_at = now.done
            log.warning(
                "over-optimisation: from round %d to round %d the held-out reward rose from %.4f "
                "to %.4f while the judge's fell from %.4f to %.4f, beyond noise; %s",
                *(best.done, now.done, best.reward, now.reward, best.mean, now.mean),
                "the training ends here" if self._stops else "the training goes on",
            )
        return True

    def state_dict(self) -> StateDict:
        """Return the best evaluation, and where they parted."""
        best = self._best
        return {
            "parted_at": self.parted_at,
            "best": None if best is None else (best.done, best.reward, dict(best.of_judge)),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Restore what `state_dict` returned."""
        self.parted_at = state["parted_at"]
        self._best = None if state["best"] is None else JudgedPolicy(*state["best"])
