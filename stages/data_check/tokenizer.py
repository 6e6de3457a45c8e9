"""The tokenizer of a lifecycle: all steps share the tokenizer with which SFT starts."""

from __future__ import annotations

from typing import Any

from stages.configs.sft_config import SftConfig
from stages.training.base_model import base_tokenizer
from training_core.errors import ConfigError


def tokenizer_of(sft: SftConfig) -> Any:
    """Build the tokenizer as SFT does, without loading the model.

    Raises:
        ConfigError: if the tokenizer has no end token, padding token or template; if SFT has no
            base or no data.
        DataError: if the tokenizer cannot be loaded.
    """
    if sft.base is None or sft.data is None:
        missing = "base" if sft.base is None else "data"
        raise ConfigError(f"sft.{missing} is not set, so there is no tokenizer; set it")
    return base_tokenizer(sft, sft.base, sft.data)
