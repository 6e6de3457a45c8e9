"""What a person writes about the stage `preference_pairs`, and its record."""

from __future__ import annotations

from stages.configs.block import semantic
from stages.configs.sampling_config import GroupSamplingConfig
from stages.configs.stage_record import TRAINED_PROMPTS, StageRecord


class PreferencePairsConfig(GroupSamplingConfig):
    """What a person writes about making pairs."""

    min_margin: float = semantic(
        0.0, "Smallest reward difference of a pair; equal ones are always dropped.", ge=0
    )
    pairs_per_prompt: int = semantic(
        1, "1 takes the best against the worst; more take all over min_margin, widest first.", gt=0
    )


STAGE = StageRecord(
    name="preference_pairs",
    version=1,
    config=PreferencePairsConfig,
    makes="dataset",
    required={"policy": "policy"},
    optional={"reward_model": "reward_model"},
    reads=TRAINED_PROMPTS,
    headline="{pairs} pairs from {prompts} prompts, margin {mean_margin}",
)
