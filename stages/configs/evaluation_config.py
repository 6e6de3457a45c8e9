"""Configuration of the stage `evaluation`, and its record."""

from __future__ import annotations

from stages.configs.block import StageConfig, semantic
from stages.configs.data_config import DataConfig
from stages.configs.reward_config import RewardConfig, RewardModelRewardConfig
from stages.configs.sampling_config import RolloutConfig
from stages.configs.stage_record import DatasetUse, StageRecord


class EvaluationConfig(StageConfig):
    """Configuration of an evaluation."""

    prompts: DataConfig = semantic(..., "Held-out prompts; no stage may have trained on them.")
    reward: RewardConfig = semantic(RewardModelRewardConfig(), "Reward that compares the policies.")
    rollouts: RolloutConfig = semantic(RolloutConfig(), "How responses are sampled.")
    responses_per_prompt: int = semantic(1, "Number of responses per policy and prompt.", ge=1)
    unscored_limit: float = semantic(
        0.02, "Largest allowed share of rollouts without a reward.", ge=0, le=1
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
