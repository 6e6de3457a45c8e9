"""Configuration of the stage `ppo`, and its record."""

from __future__ import annotations

from typing import Self

from pydantic import ValidationInfo, field_validator, model_validator

from stages.configs.ppo_fields import BasePpoConfig
from stages.configs.ppo_rules import problems_in
from stages.configs.stage_record import TRAINED_PROMPTS, DatasetUse, StageRecord


class PpoConfig(BasePpoConfig):
    """Configuration of reinforcement learning: PPO, and all algorithms with its loop."""

    @field_validator("aggregation", mode="before")
    @classmethod
    def _belongs_to_the_algorithm_if_unset(cls, value: object, info: ValidationInfo) -> object:
        loss, advantage = info.data.get("policy_loss"), info.data.get("advantage")
        if value is not None:
            return value
        if loss is None or advantage is None:  # an invalid block is missing
            return "token_mean"
        if loss.is_of_sequence:
            return loss.default_aggregation
        return advantage.default_aggregation or loss.default_aggregation

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Refuse combinations without effect, and those that an algorithm cannot use."""
        if problems := [*problems_in(self)]:
            raise ValueError("; ".join(problems))
        return self


STAGE = StageRecord(
    name="ppo",
    version=3,
    config=PpoConfig,
    makes="policy",
    required={"policy": "policy"},
    optional={"reference": "policy", "reward_model": "reward_model"},
    reads={
        **TRAINED_PROMPTS,
        "pretraining_data": DatasetUse("texts", is_trained_on=True),
        "evaluation.prompts": DatasetUse("prompts"),
        "evaluation.exclude": DatasetUse("prompts"),
    },
    trains=True,
    canaries=(
        "weight_sync",
        "sampler_gap",
        "single_bos",
        "padding_invariance",
        "first_ratio",
        "first_kl",
    ),
    headline="training reward {reward} at KL {kl}",
    heldout_headline="held-out reward {heldout_reward_before->heldout_reward}",
    curves={
        "heldout_reward": "Held-out reward",
        "heldout_judge_reward": "Held-out reward of the judge",
        "heldout_pass_at_1": "Held-out pass@1",
        "reward": "Reward",
        "kl": "KL to the reference (nats per response)",
        "response_tokens": "Response length (tokens)",
        "logprob_gap": "Log-probability gap, sampler to trainer (nats)",
        "policy_entropy": "Entropy (nats per token)",
        "policy_clip_fraction": "Clipped tokens (fraction)",
        "critic_loss": "Critic loss",
    },
)
