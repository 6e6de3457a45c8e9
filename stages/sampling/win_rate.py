"""Metrics of scored responses: means, and a paired comparison with a confidence interval."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from stages.sampling.judging import Judged
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
    pairs = [(mine[prompt], others[prompt]) for prompt in mine if prompt in others]
    if not pairs:
        raise DataError(
            f"expected prompts with a scored response of both policies, found {len(mine)} prompts "
            f"of one, {len(others)} of the other and none of both; raise rollouts.max_tokens, or "
            "correct the reward"
        )
    surplus = [sum((a > b) - (a < b) for a in one for b in other) for one, other in pairs]
    wins, losses = sum(s > 0 for s in surplus), sum(s < 0 for s in surplus)
    ties = len(pairs) - wins - losses
    low, high = win_rate_bounds(wins, losses, ties, level=LEVEL)
    return {
        "judged_prompts": float(len(pairs)),
        "won_prompts": float(wins),
        "lost_prompts": float(losses),
        "win_rate": (wins + ties / 2) / len(pairs),
        "win_rate_low": float(low),
        "win_rate_high": float(high),
        "reward_gain": fmean(fmean(one) - fmean(other) for one, other in pairs),
    }


def _by_prompt(scored: Sequence[ScoredRollout]) -> dict[str, list[float]]:
    rewards: dict[str, list[float]] = {}
    for s in scored:
        rewards.setdefault(s.rollout.prompt.id, []).append(s.reward)
    return rewards
