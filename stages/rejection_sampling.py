"""Rejection sampling: sample a group per prompt, keep the best response.

The artifact is a dataset for SFT.
"""

from __future__ import annotations

from stages.contract import Context, Inputs, Result
from stages.settings.sampling import GroupSampling


class Config(GroupSampling):
    """What a person writes about rejection sampling."""


def run(config: Config, inputs: Inputs, context: Context) -> Result:
    """Write `data.jsonl` with one {prompt, response, finished, reward} per prompt.

    Metrics: `mean_reward` of all rollouts, `best_reward` of the kept ones, `kept`, `prompts`.
    """
    from statistics import fmean

    from stages.datasets import write_jsonl
    from stages.scored_groups import sample_and_score, usable
    from training_core.errors import DataError

    groups = sample_and_score(config, inputs, context)
    kept = [usable(group, keep_unfinished=config.keep_unfinished) for group in groups]
    best = [max(group, key=lambda s: s.reward) for group in kept if group]
    if not best:
        raise DataError(
            "no response ended before the token limit; raise rollouts.max_response_tokens "
            "or set keep_unfinished"
        )
    rows = [
        {
            "prompt": list(s.rollout.prompt.messages),
            "response": s.rollout.text,
            "finished": s.rollout.is_finished,
            "reward": s.reward,
        }
        for s in best
    ]
    write_jsonl(context.artifact_dir / "data.jsonl", rows)
    metrics = {
        "prompts": float(len(groups)),
        "kept": float(len(rows)),
        "mean_reward": fmean(s.reward for group in groups for s in group),
        "best_reward": fmean(s.reward for s in best),
    }
    return Result("dataset", metrics)
