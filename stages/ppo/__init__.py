"""Proximal policy optimisation: sample, reward, estimate advantages, update, sync, again."""

from __future__ import annotations

from typing import Literal

from stages.contract import Context, Inputs, Result, StageConfig, operational, semantic
from stages.settings.data import Data
from stages.settings.sampling import Reward, RewardModelReward, Rollouts
from stages.settings.training import SteadyAdamW, SteadyOptimizer


class Config(StageConfig):
    """What a person writes about PPO."""

    prompts: Data = semantic(..., "Prompts to answer.")
    reward: Reward = semantic(RewardModelReward(), "What the policy learns to please.")
    rollouts: Rollouts = semantic(Rollouts(), "How responses are sampled.")
    steps: int = semantic(100, "Rounds of sampling and updating.", gt=0)
    prompts_per_step: int = semantic(64, "Prompts per round.", gt=0)
    group_size: int = semantic(2, "Responses per prompt.", gt=0)
    updates_per_step: int = semantic(
        2, "Optimizer steps that a round's rollouts are cut into, per epoch.", gt=0
    )
    epochs_per_step: int = semantic(1, "Passes over a round's rollouts.", gt=0)
    kl_coef: float = semantic(
        0.02, "Price of one nat of KL to the reference, in units of the reward.", ge=0
    )
    kl_estimator: Literal["k1", "k2", "k3"] = semantic(
        "k1", "Estimate of the KL per token (Schulman 2020); k1 is unbiased in the reward."
    )
    clip_low: float = semantic(0.2, "Lower clip of the probability ratio (PPO paper).", gt=0, lt=1)
    clip_high: float = semantic(0.2, "Upper clip of the probability ratio (PPO paper).", gt=0)
    value_clip: float = semantic(
        0.2, "Largest counted change of a value, in units of the return.", gt=0
    )
    gamma: float = semantic(1.0, "Discount per token.", ge=0, le=1)
    gae_lambda: float = semantic(
        0.95, "GAE's trade between bias and variance (Stiennon et al. 2020).", ge=0, le=1
    )
    critic_warmup_steps: int = semantic(0, "First rounds in which only the critic learns.", ge=0)
    policy_optimizer: SteadyOptimizer = semantic(SteadyAdamW(), "The policy's optimizer.")
    critic_optimizer: SteadyOptimizer = semantic(
        SteadyAdamW(learning_rate=5e-5), "The critic's optimizer."
    )
    unscored_limit: float = semantic(
        0.02, "Tolerated share of rollouts without a reward.", ge=0, le=1
    )
    micro_batch_tokens: int = operational(8192, "Padded tokens in memory at once.", gt=0)
    save_every_steps: int = operational(10, "Rounds between checkpoints.", gt=0)
    keep_checkpoints: int = operational(2, "Complete checkpoints that stay.", gt=0)


def run(config: Config, inputs: Inputs, context: Context) -> Result:
    """Train the input `policy`, kept near the input `reference`; the artifact is the new policy.

    Metrics: means over the last tenth of the rounds of `reward`, `kl` (nats per response),
    `response_tokens`, and the largest `logprob_gap` between sampler and trainer.
    """
    from stages.ppo.controller import train

    return Result("policy", train(config, inputs, context))
