"""What a step improved, in a few words."""

from __future__ import annotations

from tasks.formatting import shown, with_error
from tasks.headlines import Metrics, headline_of
from tasks.refs import StageRef
from tasks.report.policy_scores import Evaluation, Score


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
    return headline_of(ref.stage, ref.metrics)


def _win_rate(metrics: Metrics, baseline: Score | None) -> str:
    against = f" vs {baseline.label}" if baseline else ""
    return f"win rate {shown(metrics.get('win_rate'))}{against}"
