"""The report as one HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tasks.report import formatting, plots
from tasks.report.lifecycle import Lifecycle, Step
from tasks.report.policy_scores import Evaluation, Score

TEMPLATES = Path(__file__).parent / "templates"
MERGED = ("mean_reward", "reward_stderr", "win_rate", "win_rate_low", "win_rate_high")
"""Metrics of an evaluation that are shown in one column together with their uncertainty."""

LONGEST_TEXT = 1500
ONE_STEP = "every step"


def render(story: Lifecycle) -> str:
    """Return the page. Every text is escaped; only the drawings of this package are not."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "shown": formatting.shown,
        "measured": formatting.measured,
        "words": formatting.words,
        "label": formatting.label,
        "duration": formatting.duration,
        "moment": formatting.moment,
        "cut": _cut,
    }
    judged = story.judged
    return environment.get_template("report.html.j2").render(
        story=story,
        with_error=formatting.with_error,
        win_rate=_win_rate,
        further_metrics=_further_metrics,
        reward_plot=plots.reward_plot(judged.scores) if judged else None,
        lineage_plot=plots.lineage_plot(story.steps),
        curve_plot=plots.curve_plot,
        facts=_facts(story),
        cost_names=_names([step.cost for step in story.steps]),
        environment=_environment(story.steps),
    )


def _facts(story: Lifecycle) -> dict[str, float | None]:
    """Return the numbers in the strip at the top, except the reward."""
    accuracies = [
        s.ref.metrics.get("heldout_accuracy") for s in story.steps if s.ref.kind == "reward_model"
    ]
    return {
        "accuracy": accuracies[-1] if accuracies else None,
        "seconds": sum(s.ref.seconds for s in story.steps),
        "new_seconds": sum(s.ref.seconds for s in story.steps if not s.ref.is_reused),
        "reused": sum(s.ref.is_reused for s in story.steps),
    }


def _win_rate(score: Score) -> str:
    rate, low, high = (score.metrics.get(n) for n in ("win_rate", "win_rate_low", "win_rate_high"))
    if rate is None or low is None or high is None:
        return formatting.measured(rate)
    return (
        f"{formatting.measured(rate)} ({formatting.measured(low)} to {formatting.measured(high)})"
    )


def _further_metrics(evaluation: Evaluation) -> list[str]:
    return [n for n in _names([s.metrics for s in evaluation.scores]) if n not in MERGED]


def _names(rows: list[Mapping[str, float]]) -> list[str]:
    """Return every key, in the order of its first row."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _environment(steps: tuple[Step, ...]) -> dict[str, dict[str, str]]:
    """Return, by name, each value and the steps that ran with it."""
    known = [step for step in steps if step.environment]
    table: dict[str, dict[str, list[str]]] = {}
    for step in known:
        for name, value in step.environment.items():
            if value:
                table.setdefault(name, {}).setdefault(value, []).append(step.ref.step)
    return {
        name: {v: ONE_STEP if len(s) == len(known) else ", ".join(s) for v, s in values.items()}
        for name, values in table.items()
    }


def _cut(text: str) -> str:
    rest = len(text) - LONGEST_TEXT
    return text if rest <= 0 else f"{text[:LONGEST_TEXT]} … ({rest:,} more characters)"
