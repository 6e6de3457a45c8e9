"""Load the models, the reward and the rollout engine of PPO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from transformers import PreTrainedTokenizerBase

from stages.configs.ppo_config import PpoConfig
from stages.contract import Inputs
from stages.reinforcement.learners import Learner
from stages.sampling.rewards import build_reward
from stages.sampling.rollouts import load_prompts, open_engine
from stages.training.engines import best_device, make_engine
from training_core.algorithms.policy_losses import ppo_clip
from training_core.algorithms.value_losses import clipped_value_loss
from training_core.models import hub
from training_core.models.language_model import LanguageModel
from training_core.objectives.reinforcement import policy_objective, value_objective
from training_core.rewards.reward import Reward
from training_core.rollout.engine import RolloutEngine
from training_core.types import Prompt


@dataclass(frozen=True)
class PpoModels:
    """Models, prompts, reward and rollout engine of PPO.

    Attributes:
        tokenizer: tokenizer of the policy.
        prompts: all prompts.
        reward: scores rollouts.
        reference: frozen.
        policy: trained.
        critic: trained.
        rollout_engine: samples from the policy.
        device: device of the trained models.
    """

    tokenizer: PreTrainedTokenizerBase
    prompts: Sequence[Prompt]
    reward: Reward
    reference: LanguageModel
    policy: Learner
    critic: Learner
    rollout_engine: RolloutEngine
    device: torch.device


def load_ppo_models(config: PpoConfig, inputs: Inputs) -> PpoModels:
    """Load everything; without the input `reward_model` the critic starts from the policy."""
    device, budget = best_device(), config.micro_batch_tokens
    tokenizer = hub.load_tokenizer(inputs["policy"])
    policy = hub.load_policy(inputs["policy"]).to(device)
    critic = hub.load_scalar_model(inputs.get("reward_model", inputs["policy"])).to(device)
    updates = config.steps * config.updates_per_step * config.epochs_per_step
    loss = partial(ppo_clip, clip_low=config.clip_low, clip_high=config.clip_high)
    value_loss = partial(clipped_value_loss, clip=config.value_clip)
    return PpoModels(
        tokenizer=tokenizer,
        prompts=load_prompts(config.prompts, tokenizer, config.rollouts),
        reward=build_reward(config.reward, inputs, micro_batch_tokens=budget),
        reference=hub.freeze(hub.load_policy(inputs["reference"])).to(device),
        policy=Learner(
            make_engine(policy, config.policy_optimizer, updates),
            policy_objective(loss, temperature=config.rollouts.temperature),
            budget,
        ),
        critic=Learner(
            make_engine(critic, config.critic_optimizer, updates),
            value_objective(value_loss),
            budget,
        ),
        rollout_engine=open_engine(config.rollouts, inputs["policy"], policy, tokenizer),
        device=device,
    )
