"""Whether model, tokenizer and lengths fit together, before anything is trained."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase

from training_core.errors import ConfigError, DataError
from training_core.models.language_model import LanguageModel
from training_core.models.parts import require_finite


def require_fit(
    model: LanguageModel, tokenizer: PreTrainedTokenizerBase, *, max_tokens: int
) -> None:
    """Check a base model with its tokenizer.

    Args:
        model: a causal language model.
        tokenizer: its tokenizer, with padding token and template.
        max_tokens: length of the longest sequences.

    Raises:
        DataError: if a token id has no row in the embedding, or a weight is not finite.
        ConfigError: if the sequences are longer than the model's positions.
    """
    embedding: Any = model.get_input_embeddings()
    rows = int(embedding.weight.shape[0])
    largest, token = max((number, token) for token, number in tokenizer.get_vocab().items())
    if largest >= rows:
        raise DataError(
            f"the tokenizer has the id {largest} ('{token}'), and the model's embedding has only "
            f"{rows} rows; use the tokenizer that belongs to the model, or resize its embedding"
        )
    for end in _end_ids(model):
        if not 0 <= end < rows:
            raise DataError(
                f"the model's eos_token_id {end} is outside of its vocabulary of {rows} tokens; "
                "correct it in config.json and generation_config.json"
            )
    positions = max_positions(model.config)
    if positions is not None and positions < max_tokens:
        raise ConfigError(
            f"training.max_tokens {max_tokens} is more than the model's {positions} positions; "
            "lower it, or use a model of longer context"
        )
    require_finite(model)


def max_positions(config: Any) -> int | None:
    """Return how many positions a model's config allows; None if it states no limit."""
    found = getattr(config.get_text_config(), "max_position_embeddings", None)
    return found if isinstance(found, int) and found > 0 else None


def _end_ids(model: nn.Module) -> list[int]:
    found = []
    for config in (model.config, getattr(model, "generation_config", None)):
        ids = getattr(config, "eos_token_id", None)
        found += ids if isinstance(ids, list | tuple) else [ids]
    return [i for i in found if isinstance(i, int)]
