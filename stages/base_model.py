"""What SFT starts from: a tokenizer with its template, and the model behind it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages import datasets
from stages.settings.data import Data
from stages.settings.models import BaseModelSource, HubModel, LocalModel, ScratchModel
from stages.sft import Config
from training_core.data.chat import require_special_tokens
from training_core.data.templates import chat_template
from training_core.models import hub, scratch
from training_core.models.preparing import prepare

Base = BaseModelSource | Path


def base_tokenizer(config: Config, base: Base, source: Data | Path) -> Any:
    """Load the tokenizer of a base, or make one of the data's words for a scratch model.

    Args:
        config: says which template and which padding token.
        base: what the config names, or the directory of an earlier policy.
        source: the data, for a scratch model's words.

    Raises:
        ConfigError: if the tokenizer cannot end or pad a response, or has no template.
        DataError: if it cannot be loaded.
    """
    template = chat_template(config.chat_template) if config.chat_template else None
    if isinstance(base, ScratchModel):
        return scratch.make_tokenizer(_words(config, source), template or chat_template("roles"))
    directory, revision = _location(base)
    tokenizer = hub.load_tokenizer(directory, revision)
    tokenizer.chat_template = template or tokenizer.chat_template
    tokenizer.pad_token = config.pad_token or tokenizer.pad_token
    require_special_tokens(tokenizer)
    return tokenizer


def base_model(config: Config, base: Base, tokenizer: Any) -> Any:
    """Load the model of a base, or make a scratch model for the tokenizer; as it is trained."""
    options = config.model.load_options(seed=config.seed)
    if isinstance(base, ScratchModel):
        sizes = base.model_dump(exclude={"name"})
        architecture = scratch.Architecture(**sizes, max_positions=config.training.max_tokens)
        return prepare(scratch.make_policy(architecture, tokenizer, seed=config.seed), options)
    directory, revision = _location(base)
    model = hub.load_policy(directory, revision=revision, options=options)
    model.config.pad_token_id = tokenizer.pad_token_id
    return model


def _words(config: Config, source: Data | Path) -> Sequence[str]:
    """All texts of the data."""
    if config.rows == "texts":
        return datasets.texts(source)
    return [
        " ".join((*(m["content"] for m in row.prompt), row.response))
        for row in datasets.demonstrations(source)
    ]


def _location(base: HubModel | LocalModel | Path) -> tuple[str, str | None]:
    if isinstance(base, HubModel):
        return base.repo, base.revision
    return str(base.path if isinstance(base, LocalModel) else base), None
