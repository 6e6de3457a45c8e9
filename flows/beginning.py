"""What every recipe begins with: a policy, and a judge of its responses."""

from __future__ import annotations

from flows.recipe import Steps
from tasks.refs import StageRef


def sft_and_reward_model(recipe: Steps) -> tuple[StageRef, StageRef]:
    """Make the SFT policy and the reward model, the latter from given or from sampled pairs."""
    config = recipe.config
    sft = recipe.run("sft", config.sft)
    feedback = recipe.run("feedback", config.feedback, policy=sft) if config.feedback else None
    reward_model = recipe.run("reward_model", config.reward_model, policy=sft, dataset=feedback)
    return sft, reward_model
