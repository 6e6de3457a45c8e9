"""What a step improved, in a few words."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tasks.refs import StageRef
from tasks.report.judged import Evaluation, Score
from tasks.report.numbers import NOT_MEASURED, change, shown, with_error, words

Metrics = Mapping[str, float]


def result_of(ref: StageRef, score: Score | None, evaluation: Evaluation | None) -> str:
    """Say what a step improved.

    Args:
        ref: the finished step.
        score: of the policy that it made, if that was judged; nothing else says as much.
        evaluation: what it found, if it is one.
    """
    if score is not None and score.reward is not None:
        return f"held-out reward {with_error(score.reward, score.stderr)}"
    if evaluation is not None:
        return _win_rate(ref.metrics, evaluation.baseline)
    try:
        return RESULTS[ref.stage](ref.metrics)
    except KeyError:  # an unknown stage, or one that did not measure what its line is made of
        return _anything(ref.metrics)


def _win_rate(metrics: Metrics, baseline: Score | None) -> str:
    against = f" vs {baseline.label}" if baseline else ""
    return f"win rate {shown(metrics.get('win_rate'))}{against}"


def _anything(metrics: Metrics) -> str:
    first = list(metrics.items())[:2]
    return ", ".join(f"{words(n)} {shown(v)}" for n, v in first) or NOT_MEASURED


def _sft(m: Metrics) -> str:
    return f"held-out loss {change(m['heldout_loss_before'], m['heldout_loss'])}"


def _reward_model(m: Metrics) -> str:
    return f"held-out accuracy {shown(m['heldout_accuracy'])}"


def _rejection_sampling(m: Metrics) -> str:
    kept = f"{shown(m['kept'])} responses to {shown(m['prompts'])} prompts kept"
    return f"{kept}, reward {change(m['mean_reward'], m['best_reward'])}"


def _preference_pairs(m: Metrics) -> str:
    pairs = f"{shown(m['pairs'])} pairs from {shown(m['prompts'])} prompts"
    return f"{pairs}, margin {shown(m['mean_margin'])}"


def _dpo(m: Metrics) -> str:
    return f"{shown(m['accuracy'])} of {shown(m['train_pairs'])} training pairs ranked right"


def _kto(m: Metrics) -> str:
    return f"held-out margin {change(m['heldout_margin_before'], m['heldout_margin'])}"


def _process_reward(m: Metrics) -> str:
    guess = f"majority {shown(m['heldout_majority'])}"
    return f"held-out step accuracy {shown(m['heldout_accuracy'])} ({guess})"


def _distillation(m: Metrics) -> str:
    change_of = change(m["heldout_divergence_before"], m["heldout_divergence"])
    return f"held-out divergence {change_of}"


def _ppo(m: Metrics) -> str:
    return f"training reward {shown(m['reward'])} at KL {shown(m['kl'])}"


RESULTS: Mapping[str, Callable[[Metrics], str]] = {
    "sft": _sft,
    "reward_model": _reward_model,
    "rejection_sampling": _rejection_sampling,
    "preference_pairs": _preference_pairs,
    "dpo": _dpo,
    "kto": _kto,
    "process_reward": _process_reward,
    "distillation": _distillation,
    "ppo": _ppo,
}
"""Stage -> its line, from the manifest's metrics."""
