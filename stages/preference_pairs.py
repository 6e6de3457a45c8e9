"""Preference pairs from a policy's own responses: the pairs of a group with the largest margins."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from stages.configs.preference_pairs_config import PreferencePairsConfig
from stages.contract import Context, Inputs, Result
from stages.files import write_jsonl
from stages.sampling.scored_groups import sample_and_score, sampled_tokens, usable
from stages.sampling.selection import ScoredPair, widest_pairs, without_repeats
from training_core.errors import DataError
from training_core.rewards.reward import component_means


def run(config: PreferencePairsConfig, inputs: Inputs, context: Context) -> Result:
    """Write `data.jsonl` with the pairs.

    A row is {prompt, chosen, rejected, chosen_reward, rejected_reward, margin, …}.

    Metrics: `prompts`, `pairs`, `dropped` (prompts without a pair: rewards equal or within the
    margin, or responses unfinished), `duplicates` (dropped), `mean_reward`, `mean_margin`;
    `component_<name>`, if the reward has parts.
    """
    groups = sample_and_score(config, inputs, context)
    found = [
        widest_pairs(
            usable(group, keep_unfinished=config.keep_unfinished),
            min_margin=config.min_margin,
            at_most=config.pairs_per_prompt,
        )
        for group in groups
    ]
    pairs = [pair for of_prompt in found for pair in of_prompt]
    if not pairs:
        raise DataError(
            f"none of {len(groups)} prompts gave a pair: all responses of a prompt have rewards "
            f"within {config.min_margin} of each other, or were cut by the token limit; "
            "raise group_size, lower min_margin, or set keep_unfinished"
        )
    kept = without_repeats(pairs, _content)
    rows = [_row(pair) for pair in kept]
    write_jsonl(context.artifact_dir / "data.jsonl", rows)
    metrics = {
        "prompts": float(len(groups)),
        "pairs": float(len(rows)),
        "dropped": float(sum(not of_prompt for of_prompt in found)),
        "duplicates": float(len(pairs) - len(kept)),
        "mean_reward": fmean(s.reward for group in groups for s in group),
        "mean_margin": fmean(row["margin"] for row in rows),
        **component_means([s for group in groups for s in group]),
    }
    return Result(metrics, sampled_tokens=sampled_tokens(groups))


def _content(pair: ScoredPair) -> tuple[str, str, str]:
    better, worse = pair
    return better.rollout.prompt.text, better.rollout.text, worse.rollout.text


def _row(pair: ScoredPair) -> dict[str, Any]:
    better, worse = pair
    return {
        "prompt": list(better.rollout.prompt.messages),
        "chosen": better.rollout.text,
        "rejected": worse.rollout.text,
        "chosen_reward": better.reward,
        "rejected_reward": worse.reward,
        "margin": better.reward - worse.reward,
        "chosen_finished": better.rollout.is_finished,
        "rejected_finished": worse.rollout.is_finished,
    }
