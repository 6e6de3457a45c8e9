"""Configuration of the stage `evaluation`, and its record."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from stages.configs.block import StageConfig, semantic
from stages.configs.data_config import DataConfig
from stages.configs.model_config import FrozenModelsConfig
from stages.configs.reward_config import (
    CombinedRewardConfig,
    RewardModelRewardConfig,
    SingleReward,
    WeightedRewardConfig,
)
from stages.configs.reward_service_config import PairwiseJudgeConfig
from stages.configs.sampling_config import MAX_GROUP_SIZE, TruncatedRolloutConfig
from stages.configs.stage_record import DatasetUse, StageRecord

JudgingRewardConfig = Annotated[
    SingleReward | WeightedRewardConfig | CombinedRewardConfig | PairwiseJudgeConfig,
    Field(discriminator="name"),
]
"""Any reward, or a comparison with the baseline."""


class EvaluationConfig(StageConfig):
    """Configuration of an evaluation."""

    prompts: DataConfig = semantic(..., "Held-out prompts; no stage may have trained on them.")
    exclude: DataConfig | None = semantic(
        None,
        "Data whose prompts are left out of `prompts`, word for word, e.g. training data that has "
        "some of them.",
    )
    reward: JudgingRewardConfig = semantic(
        RewardModelRewardConfig(), "Reward that compares the policies."
    )
    rollouts: TruncatedRolloutConfig = semantic(
        TruncatedRolloutConfig(), "How responses are sampled."
    )
    frozen_models: FrozenModelsConfig = semantic(
        FrozenModelsConfig(), "How policies and reward model are held."
    )
    responses_per_prompt: int = semantic(
        1, "Number of responses per policy and prompt.", ge=1, le=MAX_GROUP_SIZE
    )
    unscored_limit: float = semantic(
        0.02, "Largest allowed share of rollouts without a reward.", ge=0, le=1
    )


STAGE = StageRecord(
    name="evaluation",
    version=3,
    config=EvaluationConfig,
    makes="evaluation",
    required={"policy": "policy", "baseline": "policy"},
    optional={"reward_model": "reward_model"},
    families={"policy_": "policy"},
    reads={"prompts": DatasetUse("prompts"), "exclude": DatasetUse("prompts")},
    headline="win rate {win_rate}",
)
