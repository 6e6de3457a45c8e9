"""The table of rewards, and what a stage does with each kind."""

from __future__ import annotations

from typing import get_args

import pytest
from pydantic import BaseModel

from stages.configs.reward_config import CafeRewardConfig, RewardConfig, RewardModelRewardConfig
from stages.sampling.rewards import REWARDS, build_reward
from training_core.errors import ConfigError
from training_core.rewards.functions import cafe_reward


def members() -> tuple[type[BaseModel], ...]:
    return get_args(get_args(RewardConfig)[0])


def test_every_reward_of_the_union_has_its_row_and_every_row_its_block():
    assert {block.model_fields["name"].default for block in members()} == set(REWARDS)


def test_a_reward_is_built_by_its_row():
    assert build_reward(CafeRewardConfig(), {}) is cafe_reward


def test_the_reward_model_is_asked_for_where_the_graph_gives_none():
    with pytest.raises(ConfigError, match="was given no reward model"):
        build_reward(RewardModelRewardConfig(), {})
