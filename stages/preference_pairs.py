"""Preference pairs from a policy's own responses: of a group per prompt, the best and the worst."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stages.contract import Context, Inputs, Result, semantic
from stages.settings.sampling import GroupSampling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from training_core.types import ScoredRollout


class Config(GroupSampling):
    """What a person writes about making pairs."""

    min_margin: float = semantic(
        0.0, "Smallest reward difference of a pair; equal ones are always dropped.", ge=0
    )


def run(config: Config, inputs: Inputs, context: Context) -> Result:
    """Write `data.jsonl` with one pair per usable prompt.

    A row is {prompt, chosen, rejected, chosen_reward, rejected_reward}.

    Metrics: `prompts`, `pairs`, `dropped` (equal, unfinished or under the margin), `mean_reward`,
    `mean_margin`.
    """
    from statistics import fmean

    from stages.datasets import write_jsonl
    from stages.scored_groups import sample_and_score, usable
    from training_core.errors import DataError

    groups = sample_and_score(config, inputs, context)
    rows = [
        row
        for group in groups
        if (row := _pair(usable(group, keep_unfinished=config.keep_unfinished), config.min_margin))
    ]
    if not rows:
        raise DataError(
            f"none of {len(groups)} prompts gave a pair: all responses of a prompt have rewards "
            f"within {config.min_margin} of each other, or were cut by the token limit; "
            "raise group_size, lower min_margin, or set keep_unfinished"
        )
    write_jsonl(context.artifact_dir / "data.jsonl", rows)
    metrics = {
        "prompts": float(len(groups)),
        "pairs": float(len(rows)),
        "dropped": float(len(groups) - len(rows)),
        "mean_reward": fmean(s.reward for group in groups for s in group),
        "mean_margin": fmean(row["chosen_reward"] - row["rejected_reward"] for row in rows),
    }
    return Result("dataset", metrics)


def _pair(group: Sequence[ScoredRollout], min_margin: float) -> dict[str, Any] | None:
    if not group:
        return None
    best, worst = max(group, key=lambda s: s.reward), min(group, key=lambda s: s.reward)
    if best.reward - worst.reward <= min_margin or best.rollout.text == worst.rollout.text:
        return None
    return {
        "prompt": list(best.rollout.prompt.messages),
        "chosen": best.rollout.text,
        "rejected": worst.rollout.text,
        "chosen_reward": best.reward,
        "rejected_reward": worst.reward,
        "chosen_finished": best.rollout.is_finished,
        "rejected_finished": worst.rollout.is_finished,
    }
