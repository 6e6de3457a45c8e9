"""Convert solutions with steps to token ids, for process reward models."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from transformers import PreTrainedTokenizerBase

from training_core.data.chat import bos_id, encode_prompts, tokenise
from training_core.errors import DataError
from training_core.messages import Message
from training_core.types import Example, LabelledSolution


def encode_steps(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[Message]],
    steps: Sequence[Sequence[str]],
    labels: Sequence[Sequence[float | None]],
    *,
    max_tokens: int,
    separator: str = "\n",
    names: Sequence[str] | None = None,
) -> list[LabelledSolution | None]:
    """Append the steps of a solution to its prompt, each followed by the separator.

    Every step is tokenised separately, as in TRL, so its ids do not depend on other steps.

    Args:
        tokenizer: any tokenizer with a chat template.
        prompts: an empty prompt gives only the bos token.
        steps: the steps of each solution.
        labels: one label per step, in [0, 1] or None.
        max_tokens: longer rows give None.
        separator: text after each step. The label of a step belongs to its last token. If the
            separator has no tokens, the label belongs to the last token of the step itself.
        names: names of the prompts in error messages; None numbers them.

    Raises:
        DataError: if a step has no tokens, even with the separator.
    """
    names = [str(i) for i in range(1, len(prompts) + 1)] if names is None else names
    heads = _heads(tokenizer, names, prompts)
    between = next(tokenise(tokenizer, [separator])) if separator else ()
    ids = iter(tokenise(tokenizer, [step for some in steps for step in some], as_text=True))
    encoded = []
    for name, head, some, judged in zip(names, heads, steps, labels, strict=True):
        pieces = [next(ids) + between for _ in some]
        if not all(pieces):
            raise DataError(
                f"prompt {name}: step {pieces.index(()) + 1} of the solution has no tokens; "
                "remove or fill it"
            )
        encoded.append(_joined(head, pieces, judged, max_tokens))
    return encoded


def _heads(
    tokenizer: PreTrainedTokenizerBase, names: Sequence[str], prompts: Sequence[Sequence[Message]]
) -> list[tuple[int, ...]]:
    non_empty = [i for i, prompt in enumerate(prompts) if prompt]
    found = encode_prompts(
        tokenizer, [names[i] for i in non_empty], [prompts[i] for i in non_empty]
    )
    bos = bos_id(tokenizer)
    heads: list[tuple[int, ...]] = [() if bos is None else (bos,)] * len(prompts)
    for i, prompt in zip(non_empty, found, strict=True):
        heads[i] = prompt.input_ids
    return heads


def _joined(
    head: tuple[int, ...],
    pieces: Sequence[tuple[int, ...]],
    labels: Sequence[float | None],
    max_tokens: int,
) -> LabelledSolution | None:
    ids = (*head, *(token for piece in pieces for token in piece))
    if len(ids) > max_tokens:
        return None
    ends = tuple(end - 1 for end in accumulate((len(p) for p in pieces), initial=len(head)))[1:]
    judged = {end for end, label in zip(ends, labels, strict=True) if label is not None}
    mask = tuple(int(column in judged) for column in range(len(ids)))
    return LabelledSolution(Example(ids, mask), ends, tuple(labels))
