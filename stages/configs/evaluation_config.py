"""What a person writes about the stage `evaluation`, and its record."""

from __future__ import annotations

from stages.configs.block import StageConfig, semantic
from stages.configs.data_config import DataConfig
from stages.configs.reward_config import RewardConfig, RewardModelRewardConfig
from stages.configs.sampling_config import RolloutConfig
from stages.configs.stage_record import DatasetUse, StageRecord


class EvaluationConfig(StageConfig):
    """What a person writes about the stage `evaluation`, and its record."""

    prompts: DataConfig = semantic(..., "Held-out prompts; none of them may have been trained on.")
    reward: RewardConfig = semantic(RewardModelRewardConfig(), "The judge.")
    rollouts: RolloutConfig = semantic(RolloutConfig(), "How responses are sampled.")
    responses_per_prompt: int = semantic(1, "Responses of each policy to each prompt.", ge=1)
    unscored_limit: float = semantic(
        0.02, "Tolerated share of rollouts without a reward.", ge=0, le=1
    )


STAGE = StageRecord(
    name="evaluation",
    version=1,
    config=EvaluationConfig,
    makes="evaluation",
    required={"policy": "policy", "baseline": "policy"},
    optional={"reward_model": "reward_model"},
    families={"policy_": "policy"},
    reads={"prompts": DatasetUse("prompts")},
    headline="win rate {win_rate}",
)
