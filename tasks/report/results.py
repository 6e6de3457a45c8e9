"""What a step improved, in a few words."""

from __future__ import annotations

import re
from collections.abc import Mapping

from stages.catalog import STAGES
from tasks.refs import StageRef
from tasks.report.formatting import NOT_MEASURED, change, shown, with_error, words
from tasks.report.policy_scores import Evaluation, Score

Metrics = Mapping[str, float]


def result_of(ref: StageRef, score: Score | None, evaluation: Evaluation | None) -> str:
    """Describe the improvement of a step.

    Args:
        ref: the finished step.
        score: score of the policy that it produced, if there is one; preferred to other metrics.
        evaluation: its content, if the step is an evaluation.
    """
    if score is not None and score.reward is not None:
        return f"held-out reward {with_error(score.reward, score.stderr)}"
    if evaluation is not None:
        return _win_rate(ref.metrics, evaluation.baseline)
    try:
        return _headline(STAGES[ref.stage].headline, ref.metrics)
    except KeyError:  # an unknown stage, or one without the metrics of its template
        return _anything(ref.metrics)


def _headline(template: str, metrics: Metrics) -> str:
    """Fill in `{metric}` and `{before->after}`."""

    def fill(match: re.Match[str]) -> str:
        before, after = match.groups()
        if after is None:
            return shown(metrics[before])
        return change(metrics[before], metrics[after])

    return re.sub(r"{(\w+)(?:->(\w+))?}", fill, template)


def _win_rate(metrics: Metrics, baseline: Score | None) -> str:
    against = f" vs {baseline.label}" if baseline else ""
    return f"win rate {shown(metrics.get('win_rate'))}{against}"


def _anything(metrics: Metrics) -> str:
    first = list(metrics.items())[:2]
    return ", ".join(f"{words(n)} {shown(v)}" for n, v in first) or NOT_MEASURED
