"""Configuration of the stage `rejection_sampling`, and its record."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from stages.configs.block import Block, semantic
from stages.configs.sampling_config import GroupSamplingConfig
from stages.configs.stage_record import TRAINED_PROMPTS, StageRecord


class BestOfNConfig(Block):
    """The best response of each prompt (best of n)."""

    name: Literal["best"] = semantic("best", "Name of the selection.")


class TopKConfig(Block):
    """The best k responses of each prompt."""

    name: Literal["top_k"] = semantic("top_k", "Name of the selection.")
    k: int = semantic(2, "Number of responses per prompt.", gt=0)


class ThresholdConfig(Block):
    """Every response with at least a given reward."""

    name: Literal["threshold"] = semantic("threshold", "Name of the selection.")
    min_reward: float = semantic(..., "Smallest reward that is kept.")


class EveryConfig(Block):
    """Every response with its reward, for conditional SFT."""

    name: Literal["every"] = semantic("every", "Name of the selection.")


class RejectionSamplingConfig(GroupSamplingConfig):
    """Configuration of rejection sampling."""

    select: Annotated[
        BestOfNConfig | TopKConfig | ThresholdConfig | EveryConfig, Field(discriminator="name")
    ] = semantic(BestOfNConfig(), "Which responses of a prompt are kept.")

    @model_validator(mode="after")
    def _selects_from_what_it_samples(self) -> Self:
        """Refuse to keep more responses of a prompt than there are."""
        if isinstance(self.select, TopKConfig) and self.select.k > self.group_size:
            raise ValueError(
                f"select.k {self.select.k} is larger than group_size {self.group_size}, so every "
                "response would be kept; lower select.k, or use select: {name: every}"
            )
        return self


STAGE = StageRecord(
    name="rejection_sampling",
    version=3,
    config=RejectionSamplingConfig,
    makes="dataset",
    rows="demonstrations",
    required={"policy": "policy"},
    optional={"reward_model": "reward_model"},
    reads=TRAINED_PROMPTS,
    headline="{kept} responses to {prompts} prompts kept, reward {mean_reward->best_reward}",
)
