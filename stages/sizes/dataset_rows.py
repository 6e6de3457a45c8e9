"""Rows of a dataset as far as its config tells, without reading it."""

from __future__ import annotations

from stages.configs.block import StageConfig
from stages.configs.data_config import CafeDataConfig, DataConfig, MixedDataConfig
from stages.configs.preference_pairs_config import PreferencePairsConfig
from stages.configs.rejection_sampling_config import (
    BestOfNConfig,
    RejectionSamplingConfig,
    TopKConfig,
)


def rows_in(data: DataConfig | None) -> int | None:
    """Return the number of rows, at most; None if only the data itself tells."""
    if data is None:
        return None
    if isinstance(data, CafeDataConfig | MixedDataConfig):
        return data.size
    return data.sample or data.limit


def rows_made(config: StageConfig) -> int | None:
    """Return the rows of the dataset that a stage makes, at most; None if that is unknown."""
    if isinstance(config, PreferencePairsConfig):
        pairs = config.group_size * (config.group_size - 1) // 2
        return _times(rows_in(config.prompts), min(config.pairs_per_prompt, pairs))
    if isinstance(config, RejectionSamplingConfig):
        kept = config.group_size
        if isinstance(config.select, BestOfNConfig):
            kept = 1
        elif isinstance(config.select, TopKConfig):
            kept = config.select.k
        return _times(rows_in(config.prompts), kept)
    return None


def _times(rows: int | None, per_row: int) -> int | None:
    return None if rows is None else rows * per_row
