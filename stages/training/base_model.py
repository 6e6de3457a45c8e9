"""The start of SFT: a tokenizer with its chat template, and a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from stages import datasets
from stages.configs.data_config import DataConfig
from stages.configs.model_config import (
    BaseModelConfig,
    ExternalModelConfig,
    HubModelConfig,
    LocalModelConfig,
    ScratchModelConfig,
)
from stages.configs.sft_config import SftConfig
from training_core.data.chat import require_special_tokens, require_unused_token
from training_core.data.template_check import require_template
from training_core.data.templates import chat_template
from training_core.errors import DataError
from training_core.models import hub, scratch
from training_core.models.fitting_parts import require_fit
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
        ConfigError: if the tokenizer cannot end or pad a response, has no template or one that
            fails.
        DataError: if it cannot be loaded.
    """
    if isinstance(base, ScratchModelConfig):
        made = scratch.make_tokenizer(
            _words(config, source), chat_template(config.chat_template or "roles")
        )
        require_template(made)
        return made
    return adapted_tokenizer(base, template=config.chat_template, pad_token=config.pad_token)


def adapted_tokenizer(
    model: ExternalModelConfig | Path, *, template: str | None, pad_token: str | None
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model, with the template and the padding token of a config.

    Args:
        model: where it is.
        template: see `chat_template`; None keeps the tokenizer's template.
        pad_token: None keeps the tokenizer's token.

    Raises:
        ConfigError: if it cannot end or pad a response, has no template or one that fails.
        DataError: if it cannot be loaded.
    """
    tokenizer = hub.load_tokenizer(*location_of(model))
    if template:
        tokenizer.chat_template = chat_template(template)
    if pad_token is not None:
        require_unused_token(tokenizer, pad_token)
        tokenizer.pad_token = pad_token
    require_special_tokens(tokenizer)
    require_template(tokenizer)
    return tokenizer


def base_model(config: SftConfig, base: Base, tokenizer: PreTrainedTokenizerBase) -> LanguageModel:
    """Load the model of a base or make a scratch model for the tokenizer, ready for training.

    Raises:
        DataError: if the base holds no model, or one that does not fit the tokenizer.
        ConfigError: if an option or a length does not fit the model.
    """
    options = config.model.load_options(seed=config.seed)
    if isinstance(base, ScratchModelConfig):
        made = scratch.make_policy(_architecture(config, base), tokenizer, seed=config.seed)
        return prepare(made, options)
    directory, revision = location_of(base)
    model = hub.load_policy(directory, revision=revision, options=options)
    require_fit(model, tokenizer, max_tokens=config.training.max_tokens)
    model.config.pad_token_id = tokenizer.pad_token_id
    return model


def base_config(config: SftConfig, base: Base) -> Any:
    """Return transformers' config of a base, without its weights.

    Raises:
        DataError: if the base holds no model.
    """
    if isinstance(base, ScratchModelConfig):
        return scratch.llama_config(_architecture(config, base))
    return hub.load_config(*location_of(base))


def _architecture(config: SftConfig, base: ScratchModelConfig) -> scratch.Architecture:
    sizes = base.model_dump(exclude={"name"})
    return scratch.Architecture(**sizes, max_positions=config.training.max_tokens)


def _words(config: SftConfig, source: DataConfig | Path) -> Sequence[str]:
    """Return all texts of the data."""
    if config.rows == "texts":
        return datasets.texts(source)
    return [
        " ".join((*(m["content"] for m in row.prompt), row.response))
        for row in datasets.demonstrations(source)
    ]


def location_of(base: ExternalModelConfig | Path) -> tuple[str, str | None]:
    """Return the directory or hub id of a model, and its revision on the hub."""
    if isinstance(base, HubModelConfig):
        if Path(base.repo).exists():  # transformers would read this folder
            raise DataError(
                f"sft.base.repo: a folder {base.repo} is in {Path.cwd()}, and it would be read "
                "instead of the hub; use `name: local`, or start from another folder"
            )
        return base.repo, base.revision
    return str(base.path if isinstance(base, LocalModelConfig) else base), None
