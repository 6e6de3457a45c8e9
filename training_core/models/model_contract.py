"""The contract of a model: what whoever uses it must agree with, as short texts.

It is computed from the files of a directory, so a model of the hub has one, too.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from training_core.models import hub
from training_core.models.fitting_parts import max_positions

DIGITS = 12
"""Digits of a digest, as in logs."""
SPECIAL = ("bos_token", "eos_token", "unk_token")
SHOWN = 40
"""Characters of a chat template."""


def contract_of(directory: Path) -> dict[str, str]:
    """Describe the model in a directory.

    Returns:
        `vocabulary` (every token with its id), `merges` (how texts are cut into tokens),
        `chat_template`, `special_tokens`, `end_tokens` (ids that end a response), `padding`,
        `vocabulary_size` (rows of the embedding), `dtype`, `tied_weights` and `positions`.

    Raises:
        DataError: if there is no model or no tokenizer.
    """
    config, tokenizer = hub.load_config(directory), hub.load_tokenizer(directory)
    text_config = config.get_text_config()
    vocabulary = tokenizer.get_vocab()
    template = tokenizer.chat_template
    special = {name: (getattr(tokenizer, name), _id_of(tokenizer, name)) for name in SPECIAL}
    return {
        "vocabulary": f"{len(vocabulary)} tokens, digest {_digest(sorted(vocabulary.items()))}",
        "merges": _merges(tokenizer),
        "chat_template": f"{_digest(template)} {template!r:.{SHOWN}}" if template else "none",
        "special_tokens": ", ".join(f"{n} {t!r} = {i}" for n, (t, i) in special.items()),
        "end_tokens": ", ".join(map(str, _end_ids(directory, config, tokenizer))),
        "padding": f"{tokenizer.pad_token!r} = {tokenizer.pad_token_id}",
        "vocabulary_size": str(text_config.vocab_size),
        "dtype": str(config.dtype or "float32").removeprefix("torch."),
        "tied_weights": str(bool(getattr(text_config, "tie_word_embeddings", False))).lower(),
        "positions": str(max_positions(config) or "no limit"),
    }


def _id_of(tokenizer: PreTrainedTokenizerBase, name: str) -> object:
    return getattr(tokenizer, f"{name}_id")


def _merges(tokenizer: PreTrainedTokenizerBase) -> str:
    if not tokenizer.is_fast:
        return f"slow tokenizer {type(tokenizer).__name__}"
    known: Any = tokenizer
    parts = json.loads(known.backend_tokenizer.to_str())
    model = parts["model"]
    cutting = [parts["normalizer"], parts["pre_tokenizer"], model.get("merges")]
    return f"{model.get('type')}, digest {_digest(cutting)}"


def _end_ids(directory: Path, config: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids at which a response ends: of the tokenizer and of the generation config."""
    path = directory / "generation_config.json"
    asked = json.loads(path.read_text()).get("eos_token_id") if path.exists() else None
    found: set[int] = set()
    for ids in (tokenizer.eos_token_id, asked, getattr(config, "eos_token_id", None)):
        found |= {i for i in (ids if isinstance(ids, list) else [ids]) if isinstance(i, int)}
    return sorted(found)


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
