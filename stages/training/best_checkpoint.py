"""The step with the best weights so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches

from stages.configs.training_config import BestMetricConfig
from training_core.engine.protocol import StateDict
from training_core.errors import ConfigError


class BestCheckpoint:
    """The best evaluation so far; saved with every checkpoint, for a resumed run.

    Args:
        rule: metric to compare, and its direction; None compares nothing.
    """

    def __init__(self, rule: BestMetricConfig | None) -> None:
        self._rule = rule
        self.step: int | None = None
        self.value = math.nan

    def takes(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Compare an evaluation with the best one; an equal or a NaN value is not better.

        Returns:
            Whether it is the best so far.

        Raises:
            ConfigError: if the metric is not among `metrics`.
        """
        if self._rule is None:
            return False
        self.require(metrics)
        value = float(metrics[self._rule.metric])
        sign = 1.0 if self._rule.better == "max" else -1.0
        if math.isnan(value) or (self.step is not None and sign * value <= sign * self.value):
            return False
        self.step, self.value = step, value
        return True

    def require(self, metrics: Mapping[str, float]) -> None:
        """Check that the rule's metric is one of the measured metrics.

        Raises:
            ConfigError: if it is not measured; the message contains the nearest metric.
        """
        if self._rule is None or self._rule.metric in metrics:
            return
        near = get_close_matches(self._rule.metric, metrics, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(metrics)}"
        raise ConfigError(
            f"best_metric.metric: no metric '{self._rule.metric}' is measured; {hint}"
        )

    def steps(self) -> tuple[int, ...]:
        """Return the step whose checkpoint must be kept; empty if there is none."""
        return () if self.step is None else (self.step,)

    def state_dict(self) -> StateDict:
        """Return the step and its value."""
        return {"step": self.step, "value": self.value}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore what `state_dict` returned."""
        self.step, self.value = state["step"], state["value"]
