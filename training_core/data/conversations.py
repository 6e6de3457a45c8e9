"""Convert conversations to token ids. Every answer can be trained, with any chat template.

Everything before the last answer is the prompt. It is rendered and tokenised in one piece, as for
sampling, and the last answer follows with the end token. The choice of trained tokens does not
change the ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from training_core.data.chat import (
    ROWS_AT_ONCE,
    encode_prompts,
    encode_responses,
    render,
    with_one_bos,
)
from training_core.data.turns import Span, assistant_turns, end_of_turn, marked, spans_of
from training_core.errors import ConfigError, DataError
from training_core.messages import Message
from training_core.types import Example, Prompt

TrainOn = Literal["every_turn", "last_turn", "all_tokens"]


def encode_conversations(
    tokenizer: PreTrainedTokenizerBase,
    names: Sequence[str],
    prompts: Sequence[Sequence[Message]],
    responses: Sequence[str],
    *,
    max_tokens: int,
    train_on: TrainOn = "every_turn",
    is_finished: Sequence[bool] | None = None,
) -> list[Example | None]:
    """Append the last answer to each prompt and mark the trained tokens.

    `last_turn` trains the response and its end token, as `encode_responses` does. `every_turn` also
    trains the answers inside the prompt, each with the end token that the template puts after it,
    but no headers. `all_tokens` trains everything. The ids are the same for all three.

    If a template rewrites earlier answers (e.g. removes their reasoning), `every_turn` trains the
    text that is left, because the model sees only that.

    Args:
        tokenizer: must be a fast tokenizer for `every_turn`.
        names: names of the rows, for error messages.
        prompts: everything before the last answers.
        responses: the last answers.
        max_tokens: longer rows give None.
        train_on: see above.
        is_finished: False for a response that the token limit cut; it gets no end token.

    Raises:
        DataError: if the template refuses a prompt; if a response or an earlier answer has no
            tokens, or cannot be located.
        ConfigError: if the tokenizer gives no offsets.
    """
    several = [i for i, p in enumerate(prompts) if train_on == "every_turn" and assistant_turns(p)]
    single = sorted(set(range(len(prompts))).difference(several))
    found = dict(
        zip(several, masked_prompts(tokenizer, *_of(several, names, prompts)), strict=True)
    )
    plain = encode_prompts(tokenizer, *_of(single, names, prompts))
    encoded_prompts = dict(zip(single, plain, strict=True)) | {i: p for i, (p, _) in found.items()}
    examples = encode_responses(
        tokenizer,
        [encoded_prompts[i] for i in range(len(prompts))],
        responses,
        max_tokens=max_tokens,
        is_finished=[True] * len(prompts) if is_finished is None else is_finished,
    )
    if train_on == "all_tokens":
        return [e and Example(e.input_ids, (0, *(1,) * (len(e) - 1))) for e in examples]
    for i, (_, mask) in found.items():
        if (e := examples[i]) is not None:
            examples[i] = Example(e.input_ids, (*mask, *e.loss_mask[len(mask) :]))
    return examples


def _of(
    places: Sequence[int], names: Sequence[str], prompts: Sequence[Sequence[Message]]
) -> tuple[list[str], list[Sequence[Message]]]:
    return [names[i] for i in places], [prompts[i] for i in places]


def masked_prompts(
    tokenizer: PreTrainedTokenizerBase, names: Sequence[str], prompts: Sequence[Sequence[Message]]
) -> list[tuple[Prompt, tuple[int, ...]]]:
    """Render and tokenise prompts, and mark the assistant's tokens in them by their offsets.

    `training_core.data.turns` describes how the answers are located.

    Returns:
        For each prompt the result of `encode_prompts`, and a mask with 0 or 1 for each token.

    Raises:
        DataError: if a turn cannot be located, or no token of it can be trained.
        ConfigError: if the tokenizer gives no offsets.
    """
    if not prompts:
        return []
    if not tokenizer.is_fast:
        raise ConfigError(
            "train_on: every_turn needs a fast tokenizer, which gives the offsets of tokens, found "
            f"{type(tokenizer).__name__}; set train_on: last_turn"
        )
    texts = render(tokenizer, prompts, names=names)
    skeletons = render(tokenizer, [marked(p, assistant_turns(p)) for p in prompts], names=names)
    closing = end_of_turn(
        lambda messages: render(tokenizer, [messages], add_generation_prompt=False)[0],
        _end_tokens(tokenizer),
    )
    found = []
    tokens = _with_offsets(tokenizer, texts)
    rows = zip(names, prompts, texts, skeletons, tokens, strict=True)
    for name, messages, text, skeleton, (ids, places) in rows:
        prompt = Prompt(name, tuple(messages), text, with_one_bos(tokenizer, name, ids))
        spans = _located(tokenizer, prompt, skeleton, closing)
        found.append((prompt, _mask(prompt, places, spans)))
    return found


def _end_tokens(tokenizer: Any) -> list[str]:
    return [str(t) for t in (tokenizer.eos_token, *tokenizer.get_added_vocab()) if t]


def _with_offsets(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]
) -> Iterator[tuple[tuple[int, ...], list[Span]]]:
    for start in range(0, len(texts), ROWS_AT_ONCE):
        some = list(texts[start : start + ROWS_AT_ONCE])
        found = tokenizer(
            some, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        yield from zip(map(tuple, found["input_ids"]), found["offset_mapping"], strict=True)


def _located(
    tokenizer: PreTrainedTokenizerBase, prompt: Prompt, skeleton: str, closing: str
) -> list[Span]:
    try:
        return spans_of(
            prompt.messages,
            prompt.text,
            skeleton,
            lambda messages: render(tokenizer, [messages], names=[prompt.id])[0],
            closing,
        )
    except DataError as error:
        raise DataError(f"prompt {prompt.id}, {error}") from error


def _mask(prompt: Prompt, places: Sequence[Span], spans: Sequence[Span]) -> tuple[int, ...]:
    """Mark the tokens inside the spans, and tokens that also contain white space next to a span.

    Many tokenizers join a word with the space before or after it, which belongs to the header. A
    token that contains other text from outside a span is not marked.
    """
    mask = [0] * len(places)
    column = 0
    for start, end in spans:
        while column < len(places) and places[column][1] <= start:
            column += 1
        first = column
        while column < len(places) and places[column][0] < end:
            begin, stop = places[column]
            outside = prompt.text[begin:start] + prompt.text[end:stop]
            inside = prompt.text[max(begin, start) : min(stop, end)]
            mask[column] = int(not outside.strip() and (begin >= start or not inside.isspace()))
            column += 1
        if end > start and not any(mask[first:column]):
            raise DataError(
                f"prompt {prompt.id}: no token of the answer {prompt.text[start:end][:60]!r} "
                "can be trained; remove the row, or set train_on: last_turn"
            )
    return tuple(mask)
