"""A small Llama with random weights and a word tokenizer, for demos and tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from training_core.data.chat import bos_id, eos_id, pad_id
from training_core.models.language_model import LanguageModel

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>", "<user>", "<assistant>", "<system>")


@dataclass(frozen=True)
class Architecture:
    """Sizes of a scratch model.

    vLLM's CPU build needs `hidden_size / num_heads` of at least 32.
    """

    hidden_size: int = 128
    num_layers: int = 2
    num_heads: int = 4
    intermediate_size: int = 384
    max_positions: int = 512


def make_tokenizer(texts: Iterable[str], chat_template: str) -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token per word (split at white space) of `texts`."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)  # joins words with spaces
    trainer = trainers.WordLevelTrainer(special_tokens=list(SPECIAL_TOKENS), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )
    wrapped.chat_template = chat_template
    return wrapped


def make_policy(
    architecture: Architecture, tokenizer: PreTrainedTokenizerBase, *, seed: int
) -> LanguageModel:
    """Make a randomly initialised Llama with tied embeddings for `tokenizer`."""
    config = llama_config(
        architecture,
        vocab_size=len(tokenizer),
        pad_token_id=pad_id(tokenizer),
        bos_token_id=bos_id(tokenizer),
        eos_token_id=eos_id(tokenizer),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return cast("LanguageModel", LlamaForCausalLM(config))


def llama_config(architecture: Architecture, **tokens: Any) -> LlamaConfig:
    """Return transformers' config of a scratch model; `tokens` are its fields about tokens."""
    return LlamaConfig(
        hidden_size=architecture.hidden_size,
        intermediate_size=architecture.intermediate_size,
        num_hidden_layers=architecture.num_layers,
        num_attention_heads=architecture.num_heads,
        num_key_value_heads=architecture.num_heads,
        max_position_embeddings=architecture.max_positions,
        tie_word_embeddings=True,
        **tokens,
    )
