"""The kinds of rows, and the functions that read a row as one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from stages.datasets import shapes
from stages.datasets.pair_rows import pairs_in
from stages.datasets.prompt_columns import (
    PROMPT_ROLES,
    prompt_of,
    question_of,
    tree_in,
    with_system,
)
from stages.datasets.row import Row
from stages.datasets.row_types import (
    Demonstration,
    PromptRow,
    Solution,
    UnpairedResponse,
)
from stages.datasets.shapes import Shape
from stages.datasets.solution_rows import solution
from stages.datasets.trees import best_path, messages_along
from training_core.messages import Messages

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class RowKind(Generic[T_co]):
    """How rows of one kind are recognised and read.

    Attributes:
        name: plural, for error messages.
        tiers: groups of shapes; `shapes.recognise` chooses one.
        extras: additional roles that every shape may have.
        read: row -> objects of this kind.
        keeps_columns: whether `read` also uses the columns that have no role.
        is_judged: whether a further column with a verdict could contradict the rows.
    """

    name: str
    tiers: Sequence[Sequence[Shape]]
    extras: tuple[str, ...]
    read: Callable[[Row], Sequence[T_co]]
    keeps_columns: bool = False
    is_judged: bool = False

    def has_role(self, role: str) -> bool:
        """Whether a shape of this kind has a role."""
        return any(role in shape.needs for tier in self.tiers for shape in tier)


def _answered(row: Row) -> tuple[Messages, str]:
    """Return prompt and response of a row with a conversation, with two columns or with a tree."""
    if row.has("tree"):
        *path, last = best_path(tree_in(row)) or (None,)
        if last is None:
            raise row.error("tree", "a message with an answer of the assistant", row.value("tree"))
        return with_system(row, tuple(path)), last["content"]
    conversation = row.first("messages", "conversations")
    if row.has(conversation):
        *prompt, last = row.answered(conversation, "user")
        if not prompt:
            raise row.error(conversation, "a prompt, then a non-empty assistant message", last)
        return with_system(row, tuple(prompt)), last["content"]
    role = row.first("response", "completion", "output", "answer", "solution", "assistant")
    *between, last = row.answered(role, "assistant")
    return (*prompt_of(row), *between), last["content"]


def _demonstration(row: Row) -> list[Demonstration]:
    prompt, response = _answered(row)
    finished, reward = row.flag("finished"), row.number("reward")
    return [Demonstration(prompt, response, finished, reward, where=row.where)]


def _text(row: Row) -> list[str]:
    return [row.text(row.first("text", "input"))]


def _rating(verdict: Callable[[Row], bool]) -> Callable[[Row], list[UnpairedResponse]]:
    def read(row: Row) -> list[UnpairedResponse]:
        if "chosen" in row.values or "first" in row.values:
            return [
                UnpairedResponse(p.prompt, *side, where=row.where)
                for p in pairs_in(row)
                for side in (
                    (p.chosen, True, p.chosen_finished),
                    (p.rejected, False, p.rejected_finished),
                )
            ]
        prompt, response = _answered(row)
        verdicts = verdict(row), row.flag("finished")
        return [UnpairedResponse(prompt, response, *verdicts, where=row.where)]

    return read


def _is_labelled(row: Row) -> bool:
    value = row.value("label")
    if value not in (0, 1):  # True == 1 and False == 0
        expected = (
            "true, false, 1 or 0 (for a score, set `threshold` and map it with "
            "`columns: {score: <column>}`)"
        )
        raise row.error("label", expected, value)
    return bool(value)


def _is_over(threshold: float) -> Callable[[Row], bool]:
    return lambda row: row.scalar(row.first("score", "reward", "rating"), float) >= threshold


def _prompt(row: Row) -> list[PromptRow]:
    return [PromptRow(with_system(row, _asked(row)), row.others, where=row.where)]


def _asked(row: Row) -> Messages:
    if row.has("tree"):
        return messages_along([tree_in(row)])
    role = row.first("prompt", "messages", "conversations", "context_messages", *PROMPT_ROLES)
    if role in PROMPT_ROLES and role not in ("prompt", "context_messages"):
        return question_of(row)
    found = row.messages(role, "user")
    while role in ("messages", "conversations") and found and found[-1]["role"] == "assistant":
        found = found[:-1]
    if not found:
        raise row.error(role, "a message that is not the assistant's", row.value(role))
    return found


DEMONSTRATIONS = RowKind(
    "demonstrations",
    [shapes.DEMONSTRATIONS, shapes.OTHER_DEMONSTRATIONS],
    ("finished", "reward", "system"),
    _demonstration,
)
TEXTS = RowKind("texts", [shapes.TEXTS], (), _text)
PREFERENCES = RowKind(
    "preferences",
    [shapes.PREFERENCES, (*shapes.JUDGED_PAIRS, *shapes.TREES)],
    ("margin", "chosen_finished", "rejected_finished", "subset", "system"),
    pairs_in,
    is_judged=True,
)
PROMPTS = RowKind(
    "prompts",
    [shapes.PROMPTS, shapes.OTHER_PROMPTS, shapes.MORE_PROMPTS],
    ("system",),
    _prompt,
    keeps_columns=True,
)


def unpaired_responses(threshold: float | None) -> RowKind[UnpairedResponse]:
    """Build the kind for labelled responses: by a label, or by a score of at least `threshold`."""
    verdicts = ("label",) if threshold is None else ("score", "reward", "rating")
    verdict = _is_labelled if threshold is None else _is_over(threshold)
    tiers = [shapes.ratings(*verdicts), shapes.other_ratings(*verdicts)]
    extras = ("finished", "chosen_finished", "rejected_finished", "system")
    return RowKind("ratings", tiers, extras, _rating(verdict), is_judged=True)


def solutions(placeholder: str, first_step: str | None) -> RowKind[Solution]:
    """Build the kind for solutions in steps; see `stages.datasets.solutions`."""
    tiers = [shapes.SOLUTIONS, shapes.FIRST_ERRORS]
    return RowKind("solutions", tiers, (), solution(placeholder, first_step))
