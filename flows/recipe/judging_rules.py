"""What the gate must know about a lifecycle: its prompts, their sources, and what its judge is."""

from __future__ import annotations

from pathlib import PurePath

from pydantic import BaseModel

from flows.config.lifecycle_config import LifecycleConfig
from stages.configs.evaluation_config import EvaluationConfig
from stages.configs.model_config import HubModelConfig
from stages.configs.reward_config import (
    ExternalRewardModelRewardConfig,
    RewardModelRewardConfig,
    rewards_in,
)
from stages.configs.reward_service_config import HttpRewardConfig, JudgeConfig
from stages.datasets import PromptRow
from stages.datasets.configured import prompts_without
from stages.runtime.sources import digests_of_sources
from stages.runtime.stage_key import digest_of, semantic_part

SOURCE_COLUMN = "source"
"""Column of a row of prompts that says where it is from."""


def digest_of_prompts(evaluation: EvaluationConfig) -> str:
    """Digest what determines the prompts of an evaluation: the sources, and the files in them."""
    blocks = [block for block in (evaluation.prompts, evaluation.exclude) if block is not None]
    return digest_of([[semantic_part(block), digests_of_sources(block)] for block in blocks])


def sources_of_prompts(evaluation: EvaluationConfig) -> dict[str, str]:
    """Return the source of each prompt of an evaluation, by the id that the stage gives it.

    It is the value of the row's column `source`, or else the file or dataset that the row is from.

    Raises:
        DataError: if the prompts cannot be read.
    """
    rows = prompts_without(evaluation.prompts, evaluation.exclude)
    return {str(number): _source(row) for number, row in enumerate(rows, 1)}


def _source(row: PromptRow) -> str:
    named = row.columns.get(SOURCE_COLUMN)
    if isinstance(named, str) and named.strip():
        return named.strip()
    return PurePath(row.where.rpartition(", row ")[0]).name


def uses_of_judge(config: LifecycleConfig) -> str:
    """Describe what the evaluation's reward was also used for; empty if it is independent.

    A reward that was learned is wrong somewhere, and a policy that was optimised for it is drawn to
    those places (Gao et al. 2023, https://arxiv.org/abs/2210.10760). So its score rises even while
    the policy becomes worse. The other rewards are computed from the goal itself.
    """
    judges = _learned_models(config.evaluation.reward) if config.evaluation else set()
    uses = [
        f"{name}.reward"
        for name, stage in config.stages().items()
        if not isinstance(stage, EvaluationConfig)
        and judges & _learned_models(getattr(stage, "reward", None))
    ]
    return f"the reward model of {', '.join(uses)}" if uses else ""


def _learned_models(reward: BaseModel | None) -> set[str]:
    """Return what names the models behind a reward; empty if none of its parts was learned."""
    names = map(_learned_model, rewards_in(reward))
    return {name for name in names if name is not None}


def _learned_model(reward: BaseModel) -> str | None:
    """Return what names the model behind a reward; None for a reward that was not learned.

    A service may be anything, so it counts as learned.
    """
    if isinstance(reward, RewardModelRewardConfig):
        return reward.name
    if isinstance(reward, JudgeConfig):
        return reward.model_name
    if isinstance(reward, HttpRewardConfig):
        return reward.url
    if isinstance(reward, ExternalRewardModelRewardConfig):
        source = reward.model
        return source.repo if isinstance(source, HubModelConfig) else source.path
    return None
