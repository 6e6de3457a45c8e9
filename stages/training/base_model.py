"""The start of SFT: a tokenizer with its chat template, and a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from stages import datasets
from stages.configs.data_config import DataConfig
from stages.configs.model_config import (
    BaseModelConfig,
    HubModelConfig,
    LocalModelConfig,
    ScratchModelConfig,
)
from stages.configs.sft_config import SftConfig
from training_core.data.chat import require_special_tokens
from training_core.data.templates import chat_template
from training_core.models import hub, scratch
from training_core.models.language_model import LanguageModel
from training_core.models.preparing import prepare

Base = BaseModelConfig | Path


def base_tokenizer(
    config: SftConfig, base: Base, source: DataConfig | Path
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a base, or make one from the words of the data for a scratch model.

    Args:
        config: contains the template and the padding token.
        base: model that the config names, or the directory of an earlier policy.
        source: data with the words for a scratch model.

    Raises:
        ConfigError: if the tokenizer cannot end or pad a response, or has no template.
        DataError: if it cannot be loaded.
    """
    template = chat_template(config.chat_template) if config.chat_template else None
    if isinstance(base, ScratchModelConfig):
        return scratch.make_tokenizer(_words(config, source), template or chat_template("roles"))
    directory, revision = _location(base)
    tokenizer = hub.load_tokenizer(directory, revision)
    tokenizer.chat_template = template or tokenizer.chat_template
    tokenizer.pad_token = config.pad_token or tokenizer.pad_token
    require_special_tokens(tokenizer)
    return tokenizer


def base_model(config: SftConfig, base: Base, tokenizer: PreTrainedTokenizerBase) -> LanguageModel:
    """Load the model of a base or make a scratch model for the tokenizer, ready for training."""
    options = config.model.load_options(seed=config.seed)
    if isinstance(base, ScratchModelConfig):
        sizes = base.model_dump(exclude={"name"})
        architecture = scratch.Architecture(**sizes, max_positions=config.training.max_tokens)
        return prepare(scratch.make_policy(architecture, tokenizer, seed=config.seed), options)
    directory, revision = _location(base)
    model = hub.load_policy(directory, revision=revision, options=options)
    model.config.pad_token_id = tokenizer.pad_token_id
    return model


def _words(config: SftConfig, source: DataConfig | Path) -> Sequence[str]:
    """Return all texts of the data."""
    if config.rows == "texts":
        return datasets.texts(source)
    return [
        " ".join((*(m["content"] for m in row.prompt), row.response))
        for row in datasets.demonstrations(source)
    ]


def _location(base: HubModelConfig | LocalModelConfig | Path) -> tuple[str, str | None]:
    if isinstance(base, HubModelConfig):
        return base.repo, base.revision
    return str(base.path if isinstance(base, LocalModelConfig) else base), None
