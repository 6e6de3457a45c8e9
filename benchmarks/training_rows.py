"""Data and models of `training.py`: real rows of several kinds, and two small models."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from training_core.data.chat import CHAT_TEMPLATES
from training_core.models import hub, scratch

PRETRAINED = "models/TinyStories-656K"
SIZES = scratch.Architecture(hidden_size=192, num_layers=4, num_heads=6, intermediate_size=576)


@dataclass(frozen=True)
class Row:
    """One line of the table: a method and its dataset."""

    method: str
    file: str


ROWS = {
    "sft p3": Row("sft", "instruction/p3_t0_short.train.jsonl.gz"),
    "sft gsm8k": Row("sft", "reward/gsm8k_model_solutions_unpaired.jsonl.gz"),
    "reward model hh": Row("reward_model", "preference/hh_rlhf_harmless_base.train.jsonl.gz"),
    "reward model gsm8k": Row("reward_model", "preference/gsm8k_model_solutions_pairs.jsonl.gz"),
    "dpo hh": Row("dpo", "preference/hh_rlhf_harmless_base.train.jsonl.gz"),
    "dpo gsm8k": Row("dpo", "preference/gsm8k_model_solutions_pairs.jsonl.gz"),
    "kto gsm8k": Row("kto", "reward/gsm8k_model_solutions_unpaired.jsonl.gz"),
}


def start(name: str, row: Row, data: Path, folder: Path) -> tuple[Any, Any]:
    """Make the model that the row starts from (with a scalar head for a reward model)."""
    source = data / PRETRAINED
    if name == "scratch":
        words = [" ".join(map(str, texts.values())) for texts in islice(_texts(row, data), 1000)]
        tokenizer = scratch.make_tokenizer(words, CHAT_TEMPLATES["roles"])
        hub.save(scratch.make_policy(SIZES, tokenizer, seed=0), tokenizer, folder)
        source = folder
    tokenizer = hub.load_tokenizer(source)
    load = hub.load_scalar_model if row.method == "reward_model" else hub.load_policy
    model = load(source)
    model.config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def load_texts(
    row: Row, data: Path, tokenizer: Any, *, limit: int, max_tokens: int
) -> list[dict[str, Any]]:
    """Return the first `limit` rows that fit, so that neither library drops or cuts a row.

    For KTO a row must have fewer than half of `max_tokens` tokens, because the mismatched response
    of another row may be longer than its own response.
    """
    fits = max_tokens // 2 if row.method == "kto" else max_tokens
    kept: list[dict[str, Any]] = []
    for texts in _texts(row, data):
        prompt, *responses = (texts[k] for k in texts if k != "label")
        longest = max(len(tokenizer(prompt + r)["input_ids"]) for r in responses)
        if longest < fits:
            kept.append(texts)
        if len(kept) == limit:
            return kept
    raise SystemExit(
        f"{row.file} has {len(kept)} rows within {fits} tokens, expected {limit}; "
        "lower --steps or --batch-size"
    )


def _texts(row: Row, data: Path) -> Iterator[dict[str, Any]]:
    """Yield rows as prompt and responses, with TRL's column names."""
    with gzip.open(data / row.file, "rt") as lines:
        for raw in map(json.loads, lines):
            if "messages" in raw:
                *prompt, last = raw["messages"]
                yield {"prompt": _rendered(prompt), "completion": _response(last)}
            elif "chosen" in raw:
                sides = {side: _response(raw[side][0]) for side in ("chosen", "rejected")}
                yield {"prompt": _rendered(raw["prompt"]), **sides}
            else:
                label = {} if row.method == "sft" else {"label": raw["label"]}
                response = _response(raw["completion"][0])
                yield {"prompt": _rendered(raw["prompt"]), "completion": response, **label}


def _response(message: dict[str, str]) -> str:
    return " " + message["content"]  # tokens often begin with a space, so the response has it


def _rendered(messages: Sequence[dict[str, str]]) -> str:
    turns = [f"{m['role'].capitalize()}: {m['content']}\n" for m in messages]
    return "".join(turns) + "Assistant:"
