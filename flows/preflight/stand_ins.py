"""Tiny models and rows on disk, in place of those that a preset names."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerBase,
)

from flows.preflight.miniature import ROWS, TOKENS
from flows.preflight.stand_in_rows import stand_in_rows
from stages.configs.data_config import FileDataConfig, HubDataConfig
from stages.configs.model_config import (
    BaseModelConfig,
    ExternalModelConfig,
    HubModelConfig,
    LocalModelConfig,
    ScratchModelConfig,
)
from stages.configs.stage_record import RowsName
from stages.datasets.configured import SingleSource
from stages.files import files_at, write_jsonl
from training_core.data import cafe
from training_core.data.templates import chat_template
from training_core.errors import DataError
from training_core.models import hub, scratch

HEAD_SIZE = 32
"""The smallest that vLLM's CPU build takes."""
HEADS = 2
LAYERS = 2


class StandIns:
    """Makes tiny models and rows below a folder; each name of a preset is replaced once.

    Args:
        folder: exists; everything is written here.

    Attributes:
        notes: what was replaced, and why, in words.
    """

    def __init__(self, folder: Path) -> None:
        self.notes: dict[str, str] = {}
        self._folder = folder
        self._numbers = count(1)
        self._models: dict[str, LocalModelConfig] = {}

    def base_model(self, model: BaseModelConfig) -> BaseModelConfig:
        """Return a tiny random model of the same architecture, with the same tokenizer.

        If the config or the tokenizer is not at hand, a scratch model with a word tokenizer.
        """
        if isinstance(model, ScratchModelConfig):
            return model
        try:
            return self._of_its_kind(model, AutoModelForCausalLM)
        except DataError as error:
            self.notes[_name(model)] = f"a Llama with a word tokenizer instead: {_first(error)}"
            return ScratchModelConfig(
                hidden_size=HEADS * HEAD_SIZE, num_heads=HEADS, intermediate_size=128
            )

    def policy(self, model: ExternalModelConfig) -> ExternalModelConfig:
        """Return a tiny random policy; see `base_model`."""
        return self._of_its_kind_or_llama(model, AutoModelForCausalLM)

    def reward_model(self, model: ExternalModelConfig) -> ExternalModelConfig:
        """Return a tiny random reward model; see `base_model`."""
        return self._of_its_kind_or_llama(model, AutoModelForSequenceClassification, num_labels=1)

    def rows(self, source: SingleSource, kind: RowsName) -> SingleSource:
        """Return the first `ROWS` rows of files; rows of the café in the columns of the rest."""
        if isinstance(source, FileDataConfig) and _is_at_hand(source):
            return source.model_copy(
                update={"limit": min(source.limit or ROWS, ROWS), "sample": None}
            )
        if not isinstance(source, FileDataConfig | HubDataConfig):
            return source
        number = next(self._numbers)
        rows = stand_in_rows(source, kind, size=ROWS, seed=number)
        path = self._folder / f"rows-{number}.jsonl"
        write_jsonl(path, rows)
        name = source.repo if isinstance(source, HubDataConfig) else str(source.path)
        columns = ", ".join(rows[0])
        self.notes[name] = f"{ROWS} rows of the café instead, in the columns {columns}"
        return FileDataConfig(path=str(path), columns=source.columns)

    def _of_its_kind_or_llama(
        self, model: ExternalModelConfig, auto: Any, **more: object
    ) -> ExternalModelConfig:
        try:
            return self._of_its_kind(model, auto, **more)
        except DataError as error:
            self.notes[_name(model)] = f"a Llama with a word tokenizer instead: {_first(error)}"
        orders = cafe.rows("demonstrations", split="train", size=ROWS * 4, seed=0)
        texts = [" ".join(m["content"] for m in row["messages"]) for row in orders]
        tokenizer = scratch.make_tokenizer(texts, chat_template("roles"))
        sizes = scratch.Architecture(HEADS * HEAD_SIZE, LAYERS, HEADS, 128, TOKENS)
        tokens = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
        config = scratch.llama_config(sizes, **tokens, **more)
        return self._saved(_name(model), config, tokenizer, auto)

    def _of_its_kind(
        self, model: ExternalModelConfig, auto: Any, **more: object
    ) -> LocalModelConfig:
        where, revision = (
            (model.repo, model.revision)
            if isinstance(model, HubModelConfig)
            else (model.path, None)
        )
        tokenizer = hub.load_tokenizer(where, revision)
        config = _shrunk(hub.load_config(where, revision), **more)
        return self._saved(_name(model), config, tokenizer, auto)

    def _saved(
        self, name: str, config: Any, tokenizer: PreTrainedTokenizerBase, auto: Any
    ) -> LocalModelConfig:
        if name not in self._models:
            path = self._folder / f"model-{len(self._models) + 1}"
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                hub.save(cast("Any", auto).from_config(config), tokenizer, path)
            self._models[name] = LocalModelConfig(path=str(path))
            self.notes.setdefault(name, f"a random {config.model_type} of {LAYERS} layers instead")
        return self._models[name]


def _shrunk(config: Any, **more: object) -> Any:
    """Return a model's config with two layers of two small heads; other fields stay."""
    text = config.get_text_config()
    sizes = {
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "hidden_size": HEADS * HEAD_SIZE,
        "head_dim": HEAD_SIZE,
        "intermediate_size": 2 * HEADS * HEAD_SIZE,
        "layer_types": None,
        **more,
    }
    for name, value in sizes.items():
        if hasattr(text, name) or name in more:
            setattr(text, name, value)
    return type(config).from_dict(config.to_dict())


def _is_at_hand(source: FileDataConfig) -> bool:
    paths = [source.path] if isinstance(source.path, str) else source.path
    return all(files_at(path) for path in paths)


def _name(model: ExternalModelConfig) -> str:
    return model.repo if isinstance(model, HubModelConfig) else model.path


def _first(error: Exception) -> str:
    return str(error).splitlines()[0]
