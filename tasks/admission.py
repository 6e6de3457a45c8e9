"""Whether a reward model may be optimised: its evidence beside the bar of the preset."""

from __future__ import annotations

from collections.abc import Iterator

from stages.configs.admission_config import AdmissionConfig
from tasks.formatting import measured
from tasks.refs import StageRef
from training_core.errors import AdmissionError

CHANCE = 0.5
MEASURED = "heldout_accuracy_low"
"""A reward model that was trained elsewhere, or by an earlier version of Ratchet, lacks it."""


def problems_with(reward_model: StageRef, bar: AdmissionConfig) -> list[str]:
    """Describe each number of a reward model that is not above the bar."""
    metrics = reward_model.metrics
    if metrics.get("heldout_pairs") == 0:
        return ["expected held-out pairs, found none; set heldout_fraction or eval_data"]
    if MEASURED not in metrics:
        return []
    return [
        f"expected {what} above {limit:g}, found {measured(metrics.get(name))}"
        for name, what, limit in _bars(bar)
        if not metrics.get(name, 0.0) > limit
    ]


def is_measured(reward_model: StageRef) -> bool:
    """Whether the stage that made a reward model has measured what the bar asks for."""
    return {MEASURED, "heldout_pairs"} & reward_model.metrics.keys() != set()


def require_admitted(step: str, reward_model: StageRef, bar: AdmissionConfig) -> None:
    """Refuse to optimise a policy for a reward model that is not better than its baselines.

    Args:
        step: name of the step that would optimise it.
        reward_model: the finished stage.
        bar: `reward_model.admission` of the preset.

    Raises:
        AdmissionError: naming each number that is missing.
    """
    if bar.required and (problems := problems_with(reward_model, bar)):
        pairs = reward_model.metrics.get("heldout_pairs", 0.0)
        raise AdmissionError(
            f"step '{step}' does not start: the reward model of step '{reward_model.step}' is not "
            f"better than its baselines beyond noise ({pairs:.0f} held-out pairs):\n  "
            + "\n  ".join(problems)
            + "\ngive it more or better pairs, hold out more of them, or lower the bar in "
            f"`{reward_model.step}.admission`"
        )


def _bars(bar: AdmissionConfig) -> Iterator[tuple[str, str, float]]:
    """Yield metric, its name in words, and what it must be above."""
    yield MEASURED, "the lower bound of the held-out accuracy", bar.min_accuracy
    for rule in bar.beats_rules:
        what = f"the lower bound of its share of right pairs, where the rule '{rule}' disagrees,"
        yield f"over_rule_{rule}_low", what, CHANCE
    for name in bar.beats_responses:
        what = f"the lower bound of the share of chosen responses that beat {name} ones"
        yield f"over_{name}_low", what, CHANCE
