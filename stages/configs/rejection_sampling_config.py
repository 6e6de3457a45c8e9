"""What a person writes about the stage `rejection_sampling`, and its record."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stages.configs.block import Block, semantic
from stages.configs.sampling_config import GroupSamplingConfig
from stages.configs.stage_record import TRAINED_PROMPTS, StageRecord


class BestOfNConfig(Block):
    """Best of n: one response per prompt."""

    name: Literal["best"] = semantic("best", "Which selection this is.")


class TopKConfig(Block):
    """The best k responses of each prompt."""

    name: Literal["top_k"] = semantic("top_k", "Which selection this is.")
    k: int = semantic(2, "Responses per prompt.", gt=0)


class ThresholdConfig(Block):
    """Every response that is good enough."""

    name: Literal["threshold"] = semantic("threshold", "Which selection this is.")
    min_reward: float = semantic(..., "Smallest reward that is kept, in units of the reward.")


class EveryConfig(Block):
    """Every response, for conditional SFT on its reward."""

    name: Literal["every"] = semantic("every", "Which selection this is.")


class RejectionSamplingConfig(GroupSamplingConfig):
    """What a person writes about the stage `rejection_sampling`, and its record."""

    select: Annotated[
        BestOfNConfig | TopKConfig | ThresholdConfig | EveryConfig, Field(discriminator="name")
    ] = semantic(BestOfNConfig(), "Which responses of a prompt are kept.")


STAGE = StageRecord(
    name="rejection_sampling",
    version=1,
    config=RejectionSamplingConfig,
    makes="dataset",
    required={"policy": "policy"},
    optional={"reward_model": "reward_model"},
    reads=TRAINED_PROMPTS,
    headline="{kept} responses to {prompts} prompts kept, reward {mean_reward->best_reward}",
)
