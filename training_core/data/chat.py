"""Chat messages to token ids. The only place that knows templates.

A prompt is tokenised by itself, exactly as it is when a response is sampled, and the response is
tokenised after it. So training and sampling see the same ids, whatever merges a tokenizer would
make across the border.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from training_core.data.templates import CHAT_TEMPLATES
from training_core.errors import ConfigError, DataError
from training_core.types import Example, Prompt

Message = Mapping[str, str]


def require_special_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that the tokenizer can end and pad a response.

    Raises:
        ConfigError: if there is no end token, no chat template, no padding token, or padding is the
            end token.
    """
    if eos_id(tokenizer) == pad_id(tokenizer):
        raise _bad_padding(tokenizer)
    if not tokenizer.chat_template:
        raise ConfigError(
            "the tokenizer has no chat template; set sft.chat_template to one of "
            f"{sorted(CHAT_TEMPLATES)} or to a Jinja template"
        )


def bos_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the id of the token that begins a text, or None where the tokenizer has none."""
    token = tokenizer.bos_token_id
    return token if isinstance(token, int) else None


def eos_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the id of the end token.

    Raises:
        ConfigError: if there is none.
    """
    token = tokenizer.eos_token_id
    if not isinstance(token, int):
        raise ConfigError("the tokenizer has no eos_token, so a response could never end; set one")
    return token


def pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the id of the padding token.

    Raises:
        ConfigError: if there is none.
    """
    token = tokenizer.pad_token_id
    if not isinstance(token, int):
        raise _bad_padding(tokenizer)
    return token


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Return the text of a response without its special tokens."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=True))


def _bad_padding(tokenizer: PreTrainedTokenizerBase) -> ConfigError:
    return ConfigError(
        f"the tokenizer needs a pad_token that is not its eos_token ('{tokenizer.eos_token}'), "
        f"found pad_token={tokenizer.pad_token!r}; a model cannot learn to stop, and a reward "
        "model cannot find the last token, where the two are the same. "
        "Set sft.pad_token to an unused token"
    )


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase, prompt_id: str, messages: Sequence[Message]
) -> Prompt:
    """Render and tokenise what the policy is asked, up to the point where it answers."""
    conversation = [dict(message) for message in messages]
    text = str(
        tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    )
    ids = tuple(tokenizer(text, add_special_tokens=False).input_ids)
    bos = bos_id(tokenizer)
    if bos is not None and ids[:2] == (bos, bos):
        raise DataError(
            f"prompt {prompt_id} starts with two bos tokens; the chat template adds one too many"
        )
    return Prompt(prompt_id, tuple(messages), text, ids)


def encode_response(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Prompt,
    response: str,
    *,
    max_tokens: int,
    is_finished: bool = True,
) -> Example | None:
    """Put `response` and the end token after `prompt`; only these are trained.

    Args:
        tokenizer: with an end token.
        prompt: from `encode_prompt`.
        response: the assistant's text.
        max_tokens: the longest sequence allowed.
        is_finished: False leaves the end token out, for a sampled response that its limit cut.

    Returns:
        The example, or None if it is longer than `max_tokens` (it is dropped and counted, never
        cut: a cut response would teach not to end).

    Raises:
        DataError: if the response has no tokens.
    """
    ids = tuple(tokenizer(response, add_special_tokens=False).input_ids)
    if not ids:
        raise DataError(
            f"prompt {prompt.id}: the response {response!r} has no tokens; remove the row"
        )
    if len(prompt.input_ids) + len(ids) + 1 > max_tokens:
        return None
    trained = (*ids, eos_id(tokenizer)) if is_finished else ids
    return Example(prompt.input_ids + trained, (0,) * len(prompt.input_ids) + (1,) * len(trained))
