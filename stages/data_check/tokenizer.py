"""The tokenizer of a lifecycle: all steps share the tokenizer with which SFT starts."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from stages.configs.model_config import ScratchModelConfig
from stages.configs.sft_config import SftConfig
from stages.training.base_model import adapted_tokenizer, base_tokenizer
from training_core.errors import ConfigError


def tokenizer_of(sft: SftConfig) -> PreTrainedTokenizerBase:
    """Build the tokenizer as SFT does, without loading the model.

    Raises:
        ConfigError: if the tokenizer has no end token, padding token or template; if SFT has no
            base, or no data for the words of a scratch model.
        DataError: if the tokenizer cannot be loaded.
    """
    if sft.base is None:
        raise ConfigError("sft.base is not set, so there is no tokenizer; set it")
    if not isinstance(sft.base, ScratchModelConfig):
        return adapted_tokenizer(sft.base, template=sft.chat_template, pad_token=sft.pad_token)
    if sft.data is None:
        raise ConfigError("sft.data is not set, so there is no tokenizer; set it")
    return base_tokenizer(sft, sft.base, sft.data)
