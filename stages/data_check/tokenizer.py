"""The tokenizer that the steps of a lifecycle share: the one that SFT starts with."""

from __future__ import annotations

from typing import Any

from stages.configs.sft_config import SftConfig
from stages.training.base_model import base_tokenizer
from training_core.errors import ConfigError


def tokenizer_of(sft: SftConfig) -> Any:
    """Build the tokenizer as SFT does, without its model.

    Raises:
        ConfigError: if the tokenizer cannot end or pad a response, or has no template; if SFT has
            no base, or no data.
        DataError: if it cannot be loaded.
    """
    if sft.base is None or sft.data is None:
        missing = "base" if sft.base is None else "data"
        raise ConfigError(f"sft.{missing} is not set, so there is no tokenizer; set it")
    return base_tokenizer(sft, sft.base, sft.data)
