"""Rows of two responses: chosen and rejected, two with a verdict, or the answers of a tree."""

from __future__ import annotations

from stages.datasets.message_columns import common_beginning
from stages.datasets.prompt_columns import (
    PROMPT_ROLES,
    question_of,
    tree_in,
    with_system,
)
from stages.datasets.row import Row
from stages.datasets.row_types import Preference
from stages.datasets.trees import ranked_pairs
from stages.datasets.verdicts import winner_of
from training_core.messages import Messages


def pairs_in(row: Row) -> list[Preference]:
    """Return the pairs of a row: one; none for a tie; for a tree, one per two ranked answers.

    Raises:
        DataError: if the row is none.
    """
    if row.has("tree"):
        return [Preference(*pair, where=row.where) for pair in ranked_pairs(tree_in(row))]
    sides = _sides(row)
    if sides is None:
        return []
    prompt, chosen, rejected = _pair(row, *sides)
    finished = row.flag("chosen_finished"), row.flag("rejected_finished")
    margin = row.number("margin") or 0.0
    if margin < 0:
        expected = "a margin of at least 0 (a negative one says that the rejected response won)"
        raise row.error("margin", expected, margin)
    subset = str(row.value("subset")) if row.has("subset") else ""
    return [Preference(prompt, chosen, rejected, *finished, margin, subset, where=row.where)]


def _sides(row: Row) -> tuple[str, str] | None:
    """Return the roles of the better and the worse response; None for a tie."""
    if "first" not in row.values:
        return "chosen", "rejected"
    winner = winner_of(row)
    if winner is None:
        return None
    return winner, "second" if winner == "first" else "first"


def _pair(row: Row, better: str, worse: str) -> tuple[Messages, str, str]:
    if any(row.has(role) for role in PROMPT_ROLES):
        prompt = question_of(row)
        before, chosen = _after(row, better, prompt)
        other, rejected = _after(row, worse, prompt)
        if before != other:
            raise row.error(worse, f"the same messages before the answer as in {better}", other)
        return with_system(row, before), chosen, rejected
    *prompt, chosen = row.answered(better, "assistant")
    *other, rejected = row.answered(worse, "assistant")
    if prompt and prompt == other:
        return with_system(row, tuple(prompt)), chosen["content"], rejected["content"]
    if prompt or other:
        expected = f"a conversation that differs from `{better}` only in the last message"
        raise row.error(worse, expected, other)
    return _implicit(row, better, chosen["content"], rejected["content"])


def _after(row: Row, role: str, prompt: Messages) -> tuple[Messages, str]:
    """Return the messages before the answer, and the answer; the column may repeat the prompt."""
    *before, last = row.answered(role, "assistant")
    if not before:
        return prompt, last["content"]
    if tuple(before[-len(prompt) :]) != prompt:
        expected = (
            "one assistant message, or a whole conversation that has the prompt before its answer"
        )
        raise row.error(role, expected, before)
    return tuple(before), last["content"]


def _implicit(row: Row, better: str, chosen: str, rejected: str) -> tuple[Messages, str, str]:
    prompt = common_beginning(chosen, rejected)
    rest, other = chosen[len(prompt) :], rejected[len(prompt) :]
    if not prompt or not rest.strip() or not other.strip():
        expected = "a field 'prompt', or texts in both responses that begin with the same words"
        raise row.error(better, expected, chosen)
    return with_system(row, ({"role": "user", "content": prompt},)), rest, other
