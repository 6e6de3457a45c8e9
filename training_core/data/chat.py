"""Chat messages to token ids. The only place that knows templates.

A prompt is tokenised by itself, exactly as it is when a response is sampled, and the response is
tokenised after it. So training and sampling see the same ids, whatever merges a tokenizer would
make across the border. A conversation of several turns is no exception: everything before the last
answer is its prompt, and which tokens of that prompt are trained changes no id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from training_core.data.templates import CHAT_TEMPLATES
from training_core.errors import ConfigError, DataError
from training_core.types import Example, Prompt

Message = Mapping[str, str]
Messages = Sequence[Message]

ROWS_AT_ONCE = 1024
"""Texts that the tokenizer is given in one call; more would only take memory."""


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


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt_id: str, messages: Messages) -> Prompt:
    """Render and tokenise what the policy is asked, up to the point where it answers."""
    return encode_prompts(tokenizer, [prompt_id], [messages])[0]


def encode_prompts(
    tokenizer: PreTrainedTokenizerBase,
    prompt_ids: Sequence[str],
    prompts: Sequence[Messages],
    columns: Sequence[Mapping[str, object]] | None = None,
) -> list[Prompt]:
    """Render and tokenise prompts, many at once; the ids are those of `encode_prompt`.

    Args:
        tokenizer: with a template.
        prompt_ids: of the prompts.
        prompts: their messages.
        columns: what else is known of each prompt; None is nothing.

    Raises:
        DataError: for a prompt that the template refuses, or that starts with two bos tokens.
    """
    texts = render(tokenizer, prompts, names=prompt_ids)
    return [
        Prompt(name, tuple(messages), text, with_one_bos(tokenizer, name, ids), known)
        for name, messages, text, ids, known in zip(
            prompt_ids,
            prompts,
            texts,
            tokenise(tokenizer, texts),
            map(MappingProxyType, columns or [{}] * len(texts)),
            strict=True,
        )
    ]


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
    return encode_responses(
        tokenizer, [prompt], [response], max_tokens=max_tokens, is_finished=[is_finished]
    )[0]


def encode_responses(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    responses: Sequence[str],
    *,
    max_tokens: int,
    is_finished: Sequence[bool],
) -> list[Example | None]:
    """Put a response after each prompt, many at once; see `encode_response`."""
    end = eos_id(tokenizer)
    encoded: list[Example | None] = []
    rows = zip(prompts, responses, tokenise(tokenizer, responses), is_finished, strict=True)
    for prompt, response, ids, ends in rows:
        if not ids:
            raise DataError(
                f"prompt {prompt.id}: the response {response!r} has no tokens; remove the row"
            )
        if len(prompt.input_ids) + len(ids) + 1 > max_tokens:
            encoded.append(None)
            continue
        trained = (*ids, end) if ends else ids
        mask = (0,) * len(prompt.input_ids) + (1,) * len(trained)
        encoded.append(Example(prompt.input_ids + trained, mask))
    return encoded


def render(
    tokenizer: PreTrainedTokenizerBase,
    conversations: Sequence[Messages],
    *,
    names: Sequence[str] | None = None,
    add_generation_prompt: bool = True,
) -> list[str]:
    """Render conversations with the tokenizer's chat template.

    Args:
        tokenizer: with a template.
        conversations: lists of messages.
        names: of the conversations, for errors.
        add_generation_prompt: end where the assistant begins to speak.

    Raises:
        DataError: for a conversation that the template refuses.
    """
    plain = [[dict(message) for message in messages] for messages in conversations]
    if not plain:
        return []
    apply: Any = tokenizer.apply_chat_template
    try:
        texts = apply(plain, tokenize=False, add_generation_prompt=add_generation_prompt)
    except TemplateError as error:
        if len(plain) == 1:
            name = names[0] if names else "?"
            roles = ", ".join(m["role"] for m in plain[0])
            raise DataError(
                f"prompt {name}: the chat template refuses messages of {roles}: {error}; "
                "remove the row, or use another template"
            ) from error
        return [
            render(
                tokenizer,
                [one],
                names=[names[i]] if names else None,
                add_generation_prompt=add_generation_prompt,
            )[0]
            for i, one in enumerate(conversations)
        ]
    return [str(text) for text in texts]


def tokenise(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> Iterator[tuple[int, ...]]:
    """Yield the ids of each text as it stands, without special tokens added."""
    for start in range(0, len(texts), ROWS_AT_ONCE):
        some = list(texts[start : start + ROWS_AT_ONCE])
        different = list(dict.fromkeys(some))  # a prompt often stands with several responses
        found = tokenizer(different, add_special_tokens=False, verbose=False)["input_ids"]
        ids = dict(zip(different, map(tuple, found), strict=True))
        yield from (ids[text] for text in some)


def with_one_bos(
    tokenizer: PreTrainedTokenizerBase, name: str, ids: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the ids of a prompt, which may begin with one bos token only.

    Raises:
        DataError: if it begins with two, naming it.
    """
    bos = bos_id(tokenizer)
    if bos is not None and ids[:2] == (bos, bos):
        raise DataError(
            f"prompt {name} starts with two bos tokens; the chat template adds one too many"
        )
    return ids
