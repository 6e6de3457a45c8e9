"""Rules that rank pairs without a model: a reward model that does not beat them learned no more."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from stages.configs.admission_config import RuleName
from training_core.data.chat import decode
from training_core.types import Example, Pair

MARKUP = re.compile(r"^\s*(?:[-*+#>|]|\d+[.)]\s)|\*\*|`|\$", re.MULTILINE)
"""Marks of Markdown: headings, items, quotes, tables, bold, code, formulas."""


def response_ids(example: Example) -> tuple[int, ...]:
    """Return the tokens of the response, with its end token."""
    return example.input_ids[len(example.prompt_ids) :]


def _length(tokenizer: PreTrainedTokenizerBase, example: Example) -> float:
    del tokenizer
    return float(len(response_ids(example)))


def _format(tokenizer: PreTrainedTokenizerBase, example: Example) -> float:
    return float(len(MARKUP.findall(decode(tokenizer, response_ids(example)))))


RULES: Mapping[RuleName, Callable[[PreTrainedTokenizerBase, Example], float]] = {
    "length": _length,
    "format": _format,
}
"""Rule -> the number by which it compares two responses."""


def preferences_of(
    rule: RuleName,
    tokenizer: PreTrainedTokenizerBase,
    train: Sequence[Pair],
    heldout: Sequence[Pair],
) -> Tensor:
    """Rank held-out pairs by a rule; its direction is the one that fits the training pairs better.

    Returns:
        [number of held-out pairs]: 1 where the rule prefers the chosen response, -1 where it
        prefers the rejected one, 0 for a tie.
    """

    def signs(pairs: Sequence[Pair]) -> Tensor:
        number = RULES[rule]
        gaps = [number(tokenizer, p.chosen) - number(tokenizer, p.rejected) for p in pairs]
        return torch.tensor(gaps, dtype=torch.float64).sign()

    direction = 1.0 if float(signs(train).sum()) >= 0 else -1.0
    return direction * signs(heldout)
