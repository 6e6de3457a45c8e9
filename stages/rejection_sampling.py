"""Rejection sampling: sample a group per prompt and keep the responses that the rule selects.

The artifact is a dataset for SFT.
"""

from __future__ import annotations

from statistics import fmean

from stages.configs.rejection_sampling_config import RejectionSamplingConfig
from stages.contract import Context, Inputs, Result
from stages.files import write_jsonl
from stages.sampling.scored_groups import sample_and_score, sampled_tokens, usable
from stages.sampling.selection import SELECTIONS, without_repeats
from training_core.errors import DataError
from training_core.rewards.reward import component_means


def run(config: RejectionSamplingConfig, inputs: Inputs, context: Context) -> Result:
    """Write `data.jsonl` with {prompt, response, finished, reward} per kept response.

    Metrics: `prompts`, `kept` (responses), `prompts_kept`, `duplicates` (dropped), `mean_reward` of
    all rollouts, `best_reward` of the kept ones; `component_<name>`, if the reward has parts.
    """
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
            **({"components": dict(s.components)} if s.components else {}),
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
        **component_means([s for group in groups for s in group]),
    }
    return Result(metrics, sampled_tokens=sampled_tokens(groups))
