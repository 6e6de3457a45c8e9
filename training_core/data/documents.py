"""Convert plain texts to token ids, for continued pre-training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from transformers import PreTrainedTokenizerBase

from training_core.data.chat import bos_id, eos_id, tokenise
from training_core.errors import DataError
from training_core.types import Example


def encode_documents(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    *,
    max_tokens: int,
    add_eos: bool = True,
) -> list[Example]:
    """Tokenise texts in windows of at most `max_tokens`; every token is trained.

    A text begins with the bos token, if the tokenizer has one, and ends with the end token. Each
    later window begins with the last token of the window before, which is not trained again. So
    every token except the first one of a text is trained exactly once.

    Args:
        tokenizer: any tokenizer.
        texts: texts that are not blank.
        max_tokens: limit of a window.
        add_eos: False leaves out the end token, like OpenRLHF's pretrain mode.

    Raises:
        DataError: if a text has no tokens.
    """
    bos = bos_id(tokenizer)
    examples: list[Example] = []
    for number, (text, ids) in enumerate(zip(texts, tokenise(tokenizer, texts), strict=True), 1):
        if not ids:
            raise DataError(f"text {number}: {text[:60]!r} has no tokens; remove the row")
        begin = (bos,) if bos is not None and ids[0] != bos else ()
        end = (eos_id(tokenizer),) if add_eos else ()
        examples += windows((*begin, *ids, *end), max_tokens)
    return examples


def windows(ids: Sequence[int], max_tokens: int) -> Iterator[Example]:
    """Split ids into windows that overlap by one token; the second window does not train on it.

    A text of one token gives no window, because no token predicts it.
    """
    for start in range(0, len(ids) - 1, max_tokens - 1):
        window = tuple(ids[start : start + max_tokens])
        yield Example(window, (0, *(1,) * (len(window) - 1)))
