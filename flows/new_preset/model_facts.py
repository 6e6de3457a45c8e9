"""What the tokenizer and the config of a model lack or limit, without its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from stages.configs.model_config import ExternalModelConfig
from stages.training.base_model import location_of
from training_core.errors import DataError
from training_core.models import hub
from training_core.models.fitting_parts import max_positions

TEMPLATES = {
    "<|start_header_id|>": "llama3",
    "<start_of_turn>": "gemma",
    "<|im_start|>": "chatml",
}
"""Token of a vocabulary -> the template that uses it."""

OTHER_TEMPLATE = "zephyr"
"""Its headers are ordinary text, so every tokenizer has tokens for them."""

PADDING = ("pad", "reserved", "unused")
"""Parts of the names of tokens that no text contains."""


@dataclass(frozen=True)
class ModelFacts:
    """What a preset must say about a model.

    Attributes:
        chat_template: name of a template, if the tokenizer has none.
        pad_token: an unused token, if the tokenizer has none for padding.
        positions: longest text that the model can read, in tokens; None if its config has no limit.
    """

    chat_template: str | None = None
    pad_token: str | None = None
    positions: int | None = None


def facts_of(model: ExternalModelConfig) -> ModelFacts | None:
    """Read tokenizer and config of a model; None if they are not at hand."""
    try:
        tokenizer = hub.load_tokenizer(*location_of(model))
        config = hub.load_config(*location_of(model))
    except DataError:  # the data check tells why
        return None
    return ModelFacts(_template(tokenizer), _padding(tokenizer), max_positions(config))


def _template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    if tokenizer.chat_template:
        return None
    known = tokenizer.get_vocab()
    return next((name for token, name in TEMPLATES.items() if token in known), OTHER_TEMPLATE)


def _padding(tokenizer: PreTrainedTokenizerBase) -> str | None:
    if tokenizer.pad_token is not None and tokenizer.pad_token != tokenizer.eos_token:
        return None
    taken = (tokenizer.eos_token, tokenizer.bos_token)
    known: Any = tokenizer  # transformers does not annotate `get_added_vocab`
    found = [token for token in known.get_added_vocab() if token not in taken]
    unused = (token for part in PADDING for token in found if part in token.lower())
    return next(unused, None)
