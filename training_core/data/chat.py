"""Convert chat messages to token ids. Only this module applies chat templates.

A prompt is tokenised separately, exactly as for sampling, and the response is tokenised after it.
So training and sampling see the same ids, even if the tokenizer would merge characters across the
border. The same holds for conversations of several turns: everything before the last answer is the
prompt, and the choice of trained tokens does not change the ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from training_core.data.control_tokens import require_no_control_tokens
from training_core.data.templates import CHAT_TEMPLATES
from training_core.errors import ConfigError, DataError
from training_core.messages import Message
from training_core.types import Example, Prompt

RENDER_ERRORS = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What a template can raise: Jinja's own errors, and those of Python in its expressions."""

ROWS_AT_ONCE = 1024
"""Number of texts per call of the tokenizer; more would only use more memory."""


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


def require_unused_token(tokenizer: PreTrainedTokenizerBase, token: str) -> None:
    """Check that a token can be used for padding: it exists, and no text contains it.

    Raises:
        ConfigError: if it is not in the vocabulary, or is an ordinary word.
    """
    known: Any = tokenizer  # transformers does not annotate `get_added_vocab`
    added: Mapping[str, int] = known.get_added_vocab()
    if token not in tokenizer.get_vocab():
        near = get_close_matches(token, added, n=1)
        hint = f"did you mean '{near[0]}'?" if near else "choose one of its unused tokens"
        raise ConfigError(f"pad_token '{token}' is not in the tokenizer's vocabulary; {hint}")
    is_marked = token[:1] + token[-1:] in ("<>", "[]")
    if not is_marked and token not in added:
        raise ConfigError(
            f"pad_token '{token}' is an ordinary token, and where a text contains it the model "
            "would see padding; choose an unused token, e.g. one like <pad> or [PAD]"
        )


def bos_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the id of the bos token, or None if the tokenizer has none."""
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
        f"found pad_token={tokenizer.pad_token!r}; if the two are equal, a model cannot learn to "
        "stop, and a reward model cannot find the last token. "
        "Set sft.pad_token to an unused token"
    )


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase, prompt_id: str, messages: Sequence[Message]
) -> Prompt:
    """Render and tokenise a prompt, including the beginning of the assistant's turn."""
    return encode_prompts(tokenizer, [prompt_id], [messages])[0]


def encode_prompts(
    tokenizer: PreTrainedTokenizerBase,
    prompt_ids: Sequence[str],
    prompts: Sequence[Sequence[Message]],
    columns: Sequence[Mapping[str, object]] | None = None,
    *,
    names: Sequence[str] | None = None,
) -> list[Prompt]:
    """Render and tokenise many prompts at once; the ids are those of `encode_prompt`.

    Args:
        tokenizer: with a template.
        prompt_ids: id of each prompt.
        prompts: their messages.
        columns: other columns of each prompt's row; None means that there are none.
        names: names of the prompts in error messages; None uses their ids.

    Raises:
        DataError: if the template refuses a prompt, or a prompt starts with two bos tokens.
    """
    names = prompt_ids if names is None else names
    texts = render(tokenizer, prompts, names=names)
    return [
        Prompt(prompt_id, tuple(messages), text, with_one_bos(tokenizer, name, ids), known)
        for prompt_id, name, messages, text, ids, known in zip(
            prompt_ids,
            names,
            prompts,
            texts,
            tokenise(tokenizer, texts),
            map(MappingProxyType, columns or [{}] * len(texts)),
            strict=True,
        )
    ]


def encode_responses(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    responses: Sequence[str],
    *,
    max_tokens: int,
    is_finished: Sequence[bool],
) -> list[Example | None]:
    """Append a response and the end token to each prompt; only these are trained.

    A control token in a response is read as ordinary text: a policy can sample its characters.

    Args:
        tokenizer: with an end token.
        prompts: from `encode_prompts`.
        responses: the assistant's texts.
        max_tokens: limit of each sequence.
        is_finished: False for a sampled response that the token limit cut; it gets no end token.

    Returns:
        The examples; None for an example that is longer than `max_tokens`. Such rows are dropped
        and counted, never cut, because the model would learn responses without an end.

    Raises:
        DataError: if a response has no tokens.
    """
    end = eos_id(tokenizer)
    encoded: list[Example | None] = []
    tokens = tokenise(tokenizer, responses, as_text=True)
    rows = zip(prompts, responses, tokens, is_finished, strict=True)
    for prompt, response, ids, ends in rows:
        if not ids:
            raise DataError(
                f"prompt {prompt.id}: the response {response!r} has no tokens; remove the row"
            )
        trained = (*ids, end) if ends else ids
        if len(prompt.input_ids) + len(trained) > max_tokens:
            encoded.append(None)
            continue
        mask = (0,) * len(prompt.input_ids) + (1,) * len(trained)
        encoded.append(Example(prompt.input_ids + trained, mask))
    return encoded


def render(
    tokenizer: PreTrainedTokenizerBase,
    conversations: Sequence[Sequence[Message]],
    *,
    names: Sequence[str] | None = None,
    add_generation_prompt: bool = True,
) -> list[str]:
    """Render conversations with the tokenizer's chat template.

    Args:
        tokenizer: with a template.
        conversations: lists of messages.
        names: names of the conversations, for error messages.
        add_generation_prompt: end with the beginning of the assistant's turn.

    Raises:
        DataError: if the template refuses a conversation, or a message contains a control token.
    """
    plain = [[dict(message) for message in messages] for messages in conversations]
    if not plain:
        return []
    require_no_control_tokens(tokenizer, plain, names)
    apply: Any = tokenizer.apply_chat_template
    try:
        texts = apply(plain, tokenize=False, add_generation_prompt=add_generation_prompt)
    except RENDER_ERRORS as error:
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


def tokenise(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, as_text: bool = False
) -> Iterator[tuple[int, ...]]:
    """Yield the ids of each text without adding special tokens.

    Args:
        tokenizer: any tokenizer.
        texts: the texts.
        as_text: whether a control token in a text is read as ordinary text, e.g. as "<", "/s", ">".
    """
    for start in range(0, len(texts), ROWS_AT_ONCE):
        some = list(texts[start : start + ROWS_AT_ONCE])
        different = list(dict.fromkeys(some))  # a prompt often has several responses
        found = tokenizer(
            different, add_special_tokens=False, verbose=False, split_special_tokens=as_text
        )["input_ids"]
        ids = dict(zip(different, map(tuple, found), strict=True))
        yield from (ids[text] for text in some)


def with_one_bos(
    tokenizer: PreTrainedTokenizerBase, name: str, ids: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the ids of a prompt after checking that it has at most one bos token at its start.

    Raises:
        DataError: if it starts with two; the message has the prompt's name.
    """
    bos = bos_id(tokenizer)
    if bos is not None and ids[:2] == (bos, bos):
        raise DataError(
            f"prompt {name} starts with two bos tokens; the chat template must add only one"
        )
    return ids
