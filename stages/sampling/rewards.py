"""The table of rewards: builds a reward from its config.

A new reward needs an entry here and a config class in `stages.configs.reward_config`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from stages import datasets
from stages.configs.reward_config import (
    LexiconRewardConfig,
    PythonRewardConfig,
    RewardConfig,
    RewardModelRewardConfig,
)
from stages.contract import Inputs
from stages.training.engines import best_device
from training_core.errors import ConfigError
from training_core.rewards import functions
from training_core.rewards.model_reward import RewardModelReward
from training_core.rewards.python_function import PythonReward, load_function
from training_core.rewards.reward import Reward


def build_reward(config: RewardConfig, inputs: Inputs, *, micro_batch_tokens: int = 8192) -> Reward:
    """Build the reward that a config describes.

    Args:
        config: its `name` selects an entry of `REWARDS`.
        inputs: inputs of the stage.
        micro_batch_tokens: padded tokens in a micro-batch of a reward model, at most.

    Raises:
        ConfigError: if the stage has no input `reward_model` but needs it, or if a Python function
            cannot be imported or called.
    """
    return REWARDS[config.name](config, inputs, micro_batch_tokens)


def _lexicon(config: LexiconRewardConfig, *_: object) -> Reward:
    return functions.LexiconReward(datasets.read_lexicon(Path(config.path)), config.ignore)


def _reward_model(
    config: RewardModelRewardConfig, inputs: Inputs, micro_batch_tokens: int
) -> Reward:
    if "reward_model" not in inputs:
        raise ConfigError("the reward is `reward_model`, but this stage was given no reward model")
    return RewardModelReward(
        inputs["reward_model"],
        normalise=config.normalise,
        micro_batch_tokens=micro_batch_tokens,
        device=best_device(),
    )


def _python(config: PythonRewardConfig, *_: object) -> Reward:
    return PythonReward(load_function(config.code, config.function), config.arguments)


REWARDS: Mapping[str, Callable[..., Reward]] = {
    "cafe": lambda *_: functions.cafe_reward,
    "lexicon": _lexicon,
    "reward_model": _reward_model,
    "python": _python,
}
"""Name of a reward -> function that builds it: (config, inputs, micro-batch tokens) -> reward."""
