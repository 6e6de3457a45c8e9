"""What a person writes about evaluation."""

from __future__ import annotations

from stages.configs.block import StageConfig, semantic
from stages.configs.data_config import DataConfig
from stages.configs.reward_config import RewardConfig, RewardModelRewardConfig
from stages.configs.sampling_config import RolloutConfig


class EvaluationConfig(StageConfig):
    """What a person writes about evaluation."""

    prompts: DataConfig = semantic(..., "Held-out prompts; none of them may have been trained on.")
    reward: RewardConfig = semantic(RewardModelRewardConfig(), "The judge.")
    rollouts: RolloutConfig = semantic(RolloutConfig(), "How responses are sampled.")
    responses_per_prompt: int = semantic(1, "Responses of each policy to each prompt.", ge=1)
    unscored_limit: float = semantic(
        0.02, "Tolerated share of rollouts without a reward.", ge=0, le=1
    )
