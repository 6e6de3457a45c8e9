"""The report as one HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from tasks import formatting
from tasks.report import plots, round_plots
from tasks.report.costs import cost_of, total
from tasks.report.lifecycle import Lifecycle, Step
from tasks.report.policy_scores import Evaluation, Score
from tasks.report.templating import environment

MERGED = (
    *("mean_reward", "reward_stderr", "win_rate", "win_rate_low", "win_rate_high"),
    *("judged_prompts", "won_prompts", "lost_prompts"),
)
"""Metrics of an evaluation that stand in the columns of the reward and of the win rate."""

ONE_STEP = "every step"


def render(story: Lifecycle) -> str:
    """Return the page. Every text is escaped; only the figures of this package are not."""
    judged = story.judged
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            story=story,
            with_error=formatting.with_error,
            win_rate=_win_rate,
            further_metrics=_further_metrics,
            reward_plot=plots.reward_plot(judged.scores) if judged else None,
            lineage_plot=plots.lineage_plot(story.steps),
            curve_plot=plots.curve_plot,
            frontier_plot=round_plots.frontier_plot,
            checkpoints_plot=round_plots.checkpoints_plot,
            true_reward_plot=lambda step: _true_reward_plot(story, step),
            histograms=lambda step: _histograms(story, step),
            facts=_facts(story),
            cost_of=cost_of,
            spent=total(story.steps, is_reused=False),
            saved=total(story.steps, is_reused=True),
            environment=_environment(story.steps),
        )
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


def _true_reward_plot(story: Lifecycle, step: Step) -> Markup | None:
    """Draw what a step optimised beside what the judge says; None without a judge."""
    if step.reward_rounds is None or story.judged is None:
        return None
    scores = {score.step: score for score in story.judged.scores}
    begun = {s.ref.key: s.ref.step for s in story.steps} | dict(story.about.outside)
    before = scores.get(begun.get(step.reward_rounds.parent, ""))
    pair = before, scores.get(step.ref.step)
    judge = story.judged.judge or ""
    return round_plots.true_reward_plot(step.reward_rounds, judge, pair, step.ref.step)


def _histograms(story: Lifecycle, step: Step) -> list[tuple[str, Markup]]:
    """Draw the rewards and lengths of a step's responses, each with a caption."""
    if not step.samples:
        return []
    judged, (samples, *more) = story.judged, step.samples
    is_policy = step.ref.kind == "policy"
    if is_policy and judged and judged.baseline:
        more = [judged.samples.get(judged.baseline.step, samples)]
    other = more[0] if more and more[0] is not samples else None
    outline = f"; outline: {other.name}" if other else ""
    caption = f"{'Held-out responses' if is_policy else formatting.capital(samples.name)}{outline}"
    pairs = (
        ("reward", samples.rewards, other.rewards if other else ()),
        ("length (words)", samples.words, other.words if other else ()),
    )
    return [
        (caption, plots.histogram(samples, values, beside, x, step.ref.step))
        for x, values, beside in pairs
        if values
    ]


def _win_rate(score: Score) -> str:
    rate, low, high = (score.metrics.get(n) for n in ("win_rate", "win_rate_low", "win_rate_high"))
    if rate is None or low is None or high is None:
        return formatting.measured(rate)
    return (
        f"{formatting.measured(rate)} ({formatting.measured(low)} to {formatting.measured(high)})"
    )


def _further_metrics(evaluation: Evaluation) -> list[str]:
    names = dict.fromkeys(name for score in evaluation.scores for name in score.metrics)
    return [name for name in names if name not in MERGED]


def _environment(steps: tuple[Step, ...]) -> Mapping[str, Mapping[str, str]]:
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
