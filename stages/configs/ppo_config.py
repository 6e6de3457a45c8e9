"""Configuration of the stage `ppo`, and its record."""

from __future__ import annotations

from typing import Literal

from stages.configs.block import StageConfig, operational, semantic
from stages.configs.data_config import DataConfig
from stages.configs.reward_config import RewardConfig, RewardModelRewardConfig
from stages.configs.sampling_config import RolloutConfig
from stages.configs.stage_record import TRAINED_PROMPTS, StageRecord
from stages.configs.training_config import ConstantAdamWConfig, ConstantOptimizerConfig


class PpoConfig(StageConfig):
    """Configuration of PPO."""

    prompts: DataConfig = semantic(..., "Prompts for the rollouts.")
    reward: RewardConfig = semantic(RewardModelRewardConfig(), "Reward that the policy maximises.")
    rollouts: RolloutConfig = semantic(RolloutConfig(), "How responses are sampled.")
    steps: int = semantic(100, "Number of rounds of sampling and updating.", gt=0)
    prompts_per_step: int = semantic(64, "Prompts per round.", gt=0)
    group_size: int = semantic(2, "Responses per prompt.", gt=0)
    updates_per_step: int = semantic(2, "Optimizer steps per pass over a round's rollouts.", gt=0)
    epochs_per_step: int = semantic(1, "Passes over a round's rollouts.", gt=0)
    kl_coef: float = semantic(
        0.02, "Penalty per nat of KL to the reference, in units of the reward.", ge=0
    )
    kl_estimator: Literal["k1", "k2", "k3"] = semantic(
        "k1", "Estimator of the KL per token (Schulman 2020); k1 in the reward is unbiased."
    )
    clip_low: float = semantic(
        0.2, "Lower clip range of the probability ratio (PPO paper).", gt=0, lt=1
    )
    clip_high: float = semantic(0.2, "Upper clip range of the probability ratio (PPO paper).", gt=0)
    value_clip: float = semantic(
        0.2, "Clip range of the value's change, in units of the return.", gt=0
    )
    gamma: float = semantic(1.0, "Discount per token.", ge=0, le=1)
    gae_lambda: float = semantic(
        0.95, "GAE's trade-off between bias and variance (Stiennon et al. 2020).", ge=0, le=1
    )
    critic_warmup_steps: int = semantic(
        0, "Number of first rounds that train only the critic.", ge=0
    )
    policy_optimizer: ConstantOptimizerConfig = semantic(
        ConstantAdamWConfig(), "The policy's optimizer."
    )
    critic_optimizer: ConstantOptimizerConfig = semantic(
        ConstantAdamWConfig(learning_rate=5e-5), "The critic's optimizer."
    )
    unscored_limit: float = semantic(
        0.02, "Largest allowed share of rollouts without a reward.", ge=0, le=1
    )
    micro_batch_tokens: int = operational(8192, "Padded tokens in a micro-batch, at most.", gt=0)
    save_every_steps: int = operational(10, "Rounds between checkpoints.", gt=0)
    keep_checkpoints: int = operational(2, "Number of complete checkpoints to keep.", gt=0)


STAGE = StageRecord(
    name="ppo",
    version=1,
    config=PpoConfig,
    makes="policy",
    required={"policy": "policy", "reference": "policy"},
    optional={"reward_model": "reward_model"},
    reads=TRAINED_PROMPTS,
    trains=True,
    headline="training reward {reward} at KL {kl}",
    curves={
        "reward": "Reward",
        "kl": "KL to the reference (nats per response)",
        "response_tokens": "Response length (tokens)",
        "logprob_gap": "Log-probability gap, sampler to trainer (nats)",
        "policy_entropy": "Entropy (nats per token)",
        "critic_loss": "Critic loss",
    },
)
