"""Configuration of the stage `preference_pairs`, and its record."""

from __future__ import annotations

from stages.configs.block import semantic
from stages.configs.sampling_config import GroupSamplingConfig
from stages.configs.stage_record import TRAINED_PROMPTS, StageRecord


class PreferencePairsConfig(GroupSamplingConfig):
    """Configuration of sampling and pairing responses."""

    min_margin: float = semantic(
        0.0,
        "Rewards of a pair must differ by more than this; equal rewards never form a pair.",
        ge=0,
    )
    pairs_per_prompt: int = semantic(
        1,
        "1: the best response with the worst. More: the pairs with the largest differences.",
        gt=0,
        le=1_000_000,
    )


STAGE = StageRecord(
    name="preference_pairs",
    version=3,
    config=PreferencePairsConfig,
    makes="dataset",
    rows="preferences",
    required={"policy": "policy"},
    optional={"reward_model": "reward_model"},
    reads=TRAINED_PROMPTS,
    headline="{pairs} pairs from {prompts} prompts, margin {mean_margin}",
)
