"""What the steps took: time on the clock, time of the devices that they reserved, and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.formatting import shown
from tasks.report.lifecycle import Step

PARTS = ("seconds", "cpu_seconds", "gpu_seconds", "trained_tokens", "sampled_tokens")


@dataclass(frozen=True)
class Cost:
    """The cost of a step, or of several.

    Attributes:
        seconds: on the clock.
        cpu_seconds: seconds on the clock times reserved CPU cores.
        gpu_seconds: seconds on the clock times reserved GPUs.
        trained_tokens: of the sequences of all optimizer steps, without padding.
        sampled_tokens: tokens of all sampled responses.
    """

    seconds: float
    cpu_seconds: float
    gpu_seconds: float
    trained_tokens: float
    sampled_tokens: float

    @property
    def devices(self) -> str:
        """What was reserved, e.g. `8 GPUs and 16 CPU cores`."""
        if not self.seconds:
            return ""
        gpus, cores = self.gpu_seconds / self.seconds, self.cpu_seconds / self.seconds
        counts = ((gpus, "GPU"), (cores, "CPU core"))
        return " and ".join(_counted(number, what) for number, what in counts if number)


def cost_of(step: Step) -> Cost | None:
    """Return the cost of the attempt that made a step; None if its manifest is gone."""
    return Cost(**{name: step.cost.get(name, 0.0) for name in PARTS}) if step.cost else None


def total(steps: Sequence[Step], *, is_reused: bool) -> Cost:
    """Add up the steps that this run has run, or those that it reused and so saved."""
    found = [cost_of(step) for step in steps if step.ref.is_reused == is_reused]
    known = [cost for cost in found if cost is not None]
    return Cost(**{name: sum(getattr(cost, name) for cost in known) for name in PARTS})


def _counted(number: float, what: str) -> str:
    rounded = round(number, 2)
    return f"{shown(rounded)} {what}{'' if rounded == 1 else 's'}"
