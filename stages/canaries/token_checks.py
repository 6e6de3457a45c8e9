"""Canaries that read tokens: which are trained, and how a sequence begins."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from transformers import PreTrainedTokenizerBase

from stages.canaries.probe import AuditedAnswer, Probe
from training_core.data.chat import bos_id, decode, eos_id, tokenise

SHOWN = 80
"""Characters of a text in an error message."""


@dataclass(frozen=True)
class CanaryFinding:
    """What a canary measured.

    Attributes:
        found: the number.
        limit: the largest that passes.
        problem: what was expected, what was found where, and what to do, if it does not pass.
    """

    found: float
    limit: float
    problem: str

    @property
    def passes(self) -> bool:
        """Whether the number is within its limit; NaN is not."""
        return self.found <= self.limit


def mask_audit(probe: Probe) -> CanaryFinding | None:
    """Decode the trained tokens of some rows and compare them with the rows' texts."""
    if not probe.answers:
        return None
    problems = [p for answer in probe.answers if (p := _problem_with(probe.tokenizer, answer))]
    return CanaryFinding(float(len(problems)), 0.0, problems[0] if problems else "")


def _problem_with(tokenizer: PreTrainedTokenizerBase, answer: AuditedAnswer) -> str | None:
    ids, mask = answer.example.input_ids, answer.example.loss_mask
    (expected,) = tokenise(tokenizer, [answer.response], as_text=True)
    if answer.is_finished:
        expected = (*expected, eos_id(tokenizer))
    spans = _spans(mask)
    if not spans:
        return f"row {answer.place}: no token is trained; expected the response and its end token"
    start, end = spans[-1]
    if start <= 1:  # every token of the sequence is trained; only its end is the response
        start, spans = max(start, len(ids) - len(expected)), spans[-1:]
    found = ids[start:end]
    wanted, got = _text(tokenizer, expected), _text(tokenizer, found)
    if wanted != got or end != len(ids):
        return (
            f"row {answer.place}: expected that the trained tokens say {wanted!r:.{SHOWN}}, found "
            f"{got!r:.{SHOWN}} (tokens {start} to {end} of {len(ids)}); the chat template or the "
            "loss mask is wrong, so look at it with `ratchet data check`"
        )
    for first, last in spans[:-1]:
        said = _bare(decode(tokenizer, ids[first:last]))
        if not any(said in one or one in said for one in _said_before(tokenizer, answer)):
            return (
                f"row {answer.place}: expected that only answers of the assistant are trained, "
                f"found {_text(tokenizer, ids[first:last])!r:.{SHOWN}} (tokens {first} to {last}), "
                "which is none; use another chat template, or train_on: last_turn"
            )
    return None


def _said_before(tokenizer: PreTrainedTokenizerBase, answer: AuditedAnswer) -> set[str]:
    """Return the earlier answers as they are, and as the tokenizer gives them back."""
    back = (decode(tokenizer, ids) for ids in tokenise(tokenizer, answer.earlier, as_text=True))
    return {_bare(text) for text in (*answer.earlier, *back)}


def single_bos(probe: Probe) -> CanaryFinding | None:
    """Count the sequences in which two bos tokens follow each other."""
    bos = bos_id(probe.tokenizer)
    if bos is None or bos == probe.tokenizer.eos_token_id or not probe.sequences:
        return None
    wrong = [e.input_ids for e in probe.sequences if _doubled(e.input_ids, bos)]
    shown = _text(probe.tokenizer, wrong[0][:12]) if wrong else ""
    return CanaryFinding(
        float(len(wrong)),
        0.0,
        f"expected one bos token '{probe.tokenizer.bos_token}' at the start of a sequence, found "
        f"two, one after the other, in {len(wrong)} of {len(probe.sequences)}, e.g. "
        f"{shown!r:.{SHOWN}}; the model has never seen that: let only the chat template write it, "
        "and remove it from the texts",
    )


def _doubled(ids: Sequence[int], bos: int) -> bool:
    return any(one == other == bos for one, other in pairwise(ids))


def _spans(mask: Sequence[int]) -> list[tuple[int, int]]:
    """Return the runs [start, end) of trained tokens."""
    padded = (0, *mask, 0)
    borders = [i for i in range(1, len(padded)) if padded[i] != padded[i - 1]]
    return [(a - 1, b - 1) for a, b in zip(borders[::2], borders[1::2], strict=True)]


def _text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))


def _bare(text: str) -> str:
    """Return a text without white space and letter case, which tokenizers may change."""
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())
