"""Metrics of scored responses: means, and a paired comparison with a confidence interval."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from stages.sampling.judging import Judged
from stages.sampling.paired_rewards import count_wins, pairs_of
from stages.sampling.win_rate_bounds import win_rate_bounds
from training_core.errors import DataError
from training_core.rewards.reward import component_means
from training_core.types import ScoredRollout

LEVEL = 0.025
"""Level of each end of the reported interval, i.e. both ends hold with 95 %."""


def describe(judged: Judged) -> dict[str, float | None]:
    """Describe one policy's responses.

    Args:
        judged: responses with their rewards.

    Returns:
        The metrics; `reward_stderr` is missing for a single response, `kl_to_baseline` is None for
        a policy that tokenises differently, and `component_<name>` exists if the reward has parts.
    """
    rewards = [s.reward for s in judged.scored]
    spread = {"reward_stderr": stdev(rewards) / len(rewards) ** 0.5} if len(rewards) > 1 else {}
    return {
        **spread,
        **component_means(judged.scored),
        "responses": float(len(rewards)),
        "mean_reward": fmean(rewards),
        "response_tokens": fmean(len(s.rollout.response_ids) for s in judged.scored),
        "finished_fraction": fmean(s.rollout.is_finished for s in judged.scored),
        "kl_to_baseline": judged.kl_to_baseline,
    }


def compare(ours: Sequence[ScoredRollout], theirs: Sequence[ScoredRollout]) -> dict[str, float]:
    """Compare two policies prompt by prompt, on the prompts that both answered.

    A prompt is won if our response has the higher reward; with several responses, if ours win more
    of all pairs of responses than they lose.

    Returns:
        `judged_prompts`, `won_prompts`, `lost_prompts`; `win_rate`, where a tie is half a win, with
        its 95 % interval `win_rate_low` and `win_rate_high`; `reward_gain`, the mean over prompts
        of our mean reward minus theirs.

    Raises:
        DataError: if no prompt has a scored response of both.
    """
    mine, others = _by_prompt(ours), _by_prompt(theirs)
    pairs = pairs_of(mine, others)
    if not pairs:
        raise DataError(
            f"expected prompts with a scored response of both policies, found {len(mine)} prompts "
            f"of one, {len(others)} of the other and none of both; raise rollouts.max_tokens, or "
            "correct the reward"
        )
    found = count_wins(pairs.values())
    low, high = win_rate_bounds(found.won, found.lost, found.tied, level=LEVEL)
    return {
        "judged_prompts": float(found.judged),
        "won_prompts": float(found.won),
        "lost_prompts": float(found.lost),
        "win_rate": (found.won + found.tied / 2) / found.judged,
        "win_rate_low": float(low),
        "win_rate_high": float(high),
        "reward_gain": found.gain,
    }


def _by_prompt(scored: Sequence[ScoredRollout]) -> dict[str, list[float]]:
    rewards: dict[str, list[float]] = {}
    for s in scored:
        rewards.setdefault(s.rollout.prompt.id, []).append(s.reward)
    return rewards
