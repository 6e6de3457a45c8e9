"""Groups of scored rollouts from a fixed policy, for the stages that make datasets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing

from stages.configs.sampling_config import GroupSamplingConfig
from stages.contract import Context, Inputs
from stages.sampling.rewards import RewardModelUse, build_reward
from stages.sampling.rollouts import (
    load_prompts,
    open_engine,
    sample_groups,
    sampling_of,
    verify_engine,
)
from stages.training.engines import best_device
from training_core.data.chat import pad_id
from training_core.dist_info import SINGLE_PROCESS
from training_core.models import hub
from training_core.models.offloading import FrozenWeights
from training_core.rewards.reward import score
from training_core.types import ScoredRollout


def sample_and_score(
    config: GroupSamplingConfig, inputs: Inputs, context: Context
) -> list[list[ScoredRollout]]:
    """Sample a group per prompt from the input `policy` and score it.

    Returns:
        One group per prompt; groups do not contain unscored rollouts.
    """
    rollouts = config.rollouts
    frozen = config.frozen_models
    use = RewardModelUse(frozen=frozen)
    reward = build_reward(config.reward, inputs, use)  # first, to fail early if it is wrong
    tokenizer = hub.load_tokenizer(inputs["policy"])
    loaded = hub.freeze(hub.load_policy(inputs["policy"], options=frozen.load_options()))
    by = SINGLE_PROCESS if frozen.shard else None
    weights = FrozenWeights(loaded, best_device(), offload=frozen.offload, divided_by=by)
    prompts = load_prompts(config.prompts, tokenizer, rollouts)
    with weights.at_work() as policy:
        opened = open_engine(rollouts, inputs["policy"], policy, tokenizer, context.cluster)
    with closing(opened) as engine:
        groups = sample_groups(
            engine,
            prompts,
            sampling_of(rollouts),
            group_size=config.group_size,
            seed=config.seed,
            context=context,
        )
        flat = [rollout for group in groups for rollout in group]
        verify_engine(engine, weights, flat, rollouts, pad_id(tokenizer))
    scored = score(reward, flat, unscored_limit=config.unscored_limit)
    by_prompt: dict[str, list[ScoredRollout]] = {}
    for item in scored:
        by_prompt.setdefault(item.rollout.prompt.id, []).append(item)
    return list(by_prompt.values())


def sampled_tokens(groups: Iterable[Iterable[ScoredRollout]]) -> int:
    """Return how many tokens the responses of all groups have."""
    return sum(len(s.rollout.response_ids) for group in groups for s in group)


def usable(group: Sequence[ScoredRollout], *, keep_unfinished: bool) -> list[ScoredRollout]:
    """Return the rollouts that may become data: not empty and, by default, finished.

    Args:
        group: scored rollouts of one prompt.
        keep_unfinished: also return unfinished rollouts.
    """
    return [
        s for s in group if (s.rollout.is_finished or keep_unfinished) and s.rollout.text.strip()
    ]
