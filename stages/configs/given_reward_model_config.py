"""Configuration of the stage `given_reward_model`, and its record."""

from __future__ import annotations

from stages.configs.block import StageConfig, semantic
from stages.configs.model_config import ExternalModelConfig
from stages.configs.stage_record import StageRecord


class GivenRewardModelConfig(StageConfig):
    """A reward model that was not trained here: a directory, or a model of the hub."""

    model: ExternalModelConfig = semantic(..., "Where it is: a sequence classifier with one label.")


STAGE = StageRecord(
    name="given_reward_model",
    version=1,
    config=GivenRewardModelConfig,
    makes="reward_model",
    headline="{parameters} parameters, trained elsewhere",
)
