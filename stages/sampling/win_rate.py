"""Metrics of scored responses: means, and a paired comparison with a confidence interval."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from scipy.stats import bootstrap

from stages.sampling.judging import Judged
from training_core.types import ScoredRollout

RESAMPLES = 2000


def describe(judged: Judged) -> dict[str, float]:
    """Describe one policy's responses.

    Args:
        judged: responses with their rewards.

    Returns:
        The metrics; `reward_stderr` is missing for a single response.
    """
    rewards = [s.reward for s in judged.scored]
    spread = {"reward_stderr": stdev(rewards) / len(rewards) ** 0.5} if len(rewards) > 1 else {}
    return {
        **spread,
        "responses": float(len(rewards)),
        "mean_reward": fmean(rewards),
        "response_tokens": fmean(len(s.rollout.response_ids) for s in judged.scored),
        "finished_fraction": fmean(s.rollout.is_finished for s in judged.scored),
        "kl_to_baseline": judged.kl_to_baseline,
    }


def compare(ours: Sequence[ScoredRollout], theirs: Sequence[ScoredRollout]) -> dict[str, float]:
    """Compare two policies prompt by prompt; a tie is half a win.

    Returns:
        `win_rate` and its 95 % bootstrap interval over prompts, `win_rate_low` and `win_rate_high`.
    """
    wins = _wins_per_prompt(ours, theirs)
    rate = fmean(wins)
    if min(wins) == max(wins):  # nothing to resample
        return {"win_rate": rate, "win_rate_low": rate, "win_rate_high": rate}
    interval = bootstrap(
        (wins,), fmean, vectorized=False, n_resamples=RESAMPLES, method="percentile", rng=0
    ).confidence_interval
    return {
        "win_rate": rate,
        "win_rate_low": float(interval.low),
        "win_rate_high": float(interval.high),
    }


def _wins_per_prompt(ours: Sequence[ScoredRollout], theirs: Sequence[ScoredRollout]) -> list[float]:
    """Return the mean over all pairs of responses to a prompt, for each prompt of both policies."""
    mine, others = _by_prompt(ours), _by_prompt(theirs)
    return [
        fmean((a > b) + 0.5 * (a == b) for a in mine[prompt] for b in others[prompt])
        for prompt in mine
        if prompt in others
    ]


def _by_prompt(scored: Sequence[ScoredRollout]) -> dict[str, list[float]]:
    rewards: dict[str, list[float]] = {}
    for s in scored:
        rewards.setdefault(s.rollout.prompt.id, []).append(s.reward)
    return rewards
