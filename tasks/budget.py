"""Stop a step before it takes more than its budget: by what it has taken, and by its pace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from stages.attempt import Attempt
from tasks.follow import StepProgress
from training_core.errors import BudgetError
from training_core.strict_json import read_object

HOUR = 3600.0
LEAST_SECONDS = 60.0
"""A pace is known after this time, and not before …"""
LEAST_SHARE = 0.02
"""… this share of the work is done."""
MARGIN = 1.1
"""A forecast has to exceed the budget by this factor; what was taken counts as it is."""


@dataclass(frozen=True)
class Allowance:
    """What one budget leaves for a step.

    Attributes:
        key: of the budget in the preset, e.g. `budget.steps.ppo.gpu_hours`.
        limit: in `unit`.
        taken: by the other steps of the flow run that count for this budget.
        unit: `hours` or `GPU-hours`.
        per_hour: what an hour of this step takes: 1, or its GPUs.
    """

    key: str
    limit: float
    taken: float
    unit: str
    per_hour: float


class BudgetWatch:
    """Compares a step with its budgets, again and again.

    Args:
        step: its name, for the error.
        allowances: what its budgets leave.
        worked: hours that this flow run has worked on the step.
    """

    def __init__(
        self, step: str, allowances: Sequence[Allowance], worked: Callable[[], float]
    ) -> None:
        self._step, self._allowances, self._worked = step, allowances, worked
        self._pace = Pace()

    def look(self, progress: StepProgress | None) -> None:
        """Compare.

        Args:
            progress: of the running attempt; None before it has begun.

        Raises:
            BudgetError: if a budget is exceeded, or will be at the present pace.
        """
        if not self._allowances:
            return
        hours = self._worked()
        ahead = self._pace.hours_ahead(progress, hours)
        for allowance in self._allowances:
            so_far = allowance.taken + hours * allowance.per_hour
            whole = so_far + ahead * allowance.per_hour
            if so_far > allowance.limit or whole > MARGIN * allowance.limit:
                raise BudgetError(self._why(allowance, so_far, whole, progress))

    def _why(
        self, allowance: Allowance, so_far: float, whole: float, progress: StepProgress | None
    ) -> str:
        at = f", with {progress.done} of {progress.total} done" if progress else ""
        return (
            f"step '{self._step}': expected at most {allowance.limit:g} {allowance.unit} "
            f"({allowance.key}), found {so_far:.3g} taken and {whole:.3g} at this pace{at}; it is "
            "stopped, and its checkpoint stays. Raise the budget in a new run, which goes on there"
        )


class Pace:
    """How fast the work goes on; a stage may have several parts, each with its own total."""

    def __init__(self) -> None:
        self._first: tuple[StepProgress, float] | None = None

    def hours_ahead(self, now: StepProgress | None, hours: float) -> float:
        """Return how long the rest takes; 0 as long as that cannot be known."""
        if now is None:
            return 0.0
        if (
            self._first is None
            or self._first[0].total != now.total
            or now.done < self._first[0].done
        ):
            self._first = (now, hours)
        start, began = self._first
        done = now.done - start.done
        if done < max(1.0, LEAST_SHARE * now.total) or (hours - began) * HOUR < LEAST_SECONDS:
            return 0.0
        return (hours - began) / done * (now.total - now.done)


def hours_of(attempts: Iterable[Attempt], since: float) -> float:
    """Return how long the processes of attempts have lived.

    Args:
        attempts: at one stage.
        since: Unix time; what was before does not count.

    Raises:
        IntegrityError: if a heartbeat is something else.
    """
    return sum(_seconds(attempt, since) for attempt in attempts) / HOUR


def _seconds(attempt: Attempt, since: float) -> float:
    try:
        beat = read_object(attempt.heartbeat, remedy="delete it; its time then does not count")
    except FileNotFoundError:
        return 0.0
    lived, last = beat.get("seconds"), beat.get("time")
    if not isinstance(lived, int | float) or not isinstance(last, int | float):
        return 0.0  # of an earlier release
    return min(lived, max(0.0, last - since))
