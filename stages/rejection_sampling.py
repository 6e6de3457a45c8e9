"""Rejection sampling: sample a group per prompt, keep the responses that are good enough.

The artifact is a dataset for SFT.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stages.contract import Block, Context, Inputs, Result, semantic
from stages.settings.sampling import GroupSampling


class Best(Block):
    """Best of n: one response per prompt."""

    name: Literal["best"] = semantic("best", "Which selection this is.")


class TopK(Block):
    """The best k responses of each prompt."""

    name: Literal["top_k"] = semantic("top_k", "Which selection this is.")
    k: int = semantic(2, "Responses per prompt.", gt=0)


class Threshold(Block):
    """Every response that is good enough."""

    name: Literal["threshold"] = semantic("threshold", "Which selection this is.")
    min_reward: float = semantic(..., "Smallest reward that is kept, in units of the reward.")


class Every(Block):
    """Every response, for conditional SFT on its reward."""

    name: Literal["every"] = semantic("every", "Which selection this is.")


class Config(GroupSampling):
    """What a person writes about rejection sampling."""

    select: Annotated[Best | TopK | Threshold | Every, Field(discriminator="name")] = semantic(
        Best(), "Which responses of a prompt are kept."
    )


def run(config: Config, inputs: Inputs, context: Context) -> Result:
    """Write `data.jsonl` with {prompt, response, finished, reward} per kept response.

    Metrics: `prompts`, `kept` (responses), `prompts_kept`, `duplicates` (dropped), `mean_reward` of
    all rollouts, `best_reward` of the kept ones.
    """
    from statistics import fmean

    from stages.datasets import write_jsonl
    from stages.scored_groups import sample_and_score, usable
    from stages.selection import SELECTIONS, without_repeats
    from training_core.errors import DataError

    groups = sample_and_score(config, inputs, context)
    select, settings = SELECTIONS[config.select.name], config.select.model_dump(exclude={"name"})
    candidates = [usable(group, keep_unfinished=config.keep_unfinished) for group in groups]
    chosen = [s for group in candidates if group for s in select(group, **settings)]
    kept = without_repeats(chosen, lambda s: (s.rollout.prompt.text, s.rollout.text))
    if not kept:
        raise DataError(
            f"none of the responses to {len(groups)} prompts was kept by {config.select!r}: they "
            "were cut by the token limit (raise rollouts.max_response_tokens or set "
            "keep_unfinished), or their rewards are too small (lower select.min_reward)"
        )
    rows = [
        {
            "prompt": list(s.rollout.prompt.messages),
            "response": s.rollout.text,
            "finished": s.rollout.is_finished,
            "reward": s.reward,
        }
        for s in kept
    ]
    write_jsonl(context.artifact_dir / "data.jsonl", rows)
    metrics = {
        "prompts": float(len(groups)),
        "kept": float(len(rows)),
        "prompts_kept": float(len({s.rollout.prompt.id for s in kept})),
        "duplicates": float(len(chosen) - len(kept)),
        "mean_reward": fmean(s.reward for group in groups for s in group),
        "best_reward": fmean(s.reward for s in kept),
    }
    return Result("dataset", metrics)
