"""The kinds of rows, and the functions that read a row as one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from stages.datasets import shapes
from stages.datasets.message_columns import Messages, common_beginning
from stages.datasets.row import Row
from stages.datasets.row_types import (
    Demonstration,
    Preference,
    PromptRow,
    Solution,
    UnpairedResponse,
)
from stages.datasets.shapes import Shape

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class RowKind(Generic[T_co]):
    """How rows of one kind are recognised and read.

    Attributes:
        name: plural, for error messages.
        tiers: groups of shapes; the second group is used only if no shape of the first one fits.
        extras: additional roles that every shape may have.
        read: row -> objects of this kind.
        keeps_columns: whether `read` also uses the columns that have no role.
    """

    name: str
    tiers: Sequence[Sequence[Shape]]
    extras: tuple[str, ...]
    read: Callable[[Row], Sequence[T_co]]
    keeps_columns: bool = False


def _prompt_of(row: Row) -> Messages:
    role = row.first("prompt", "question", "instruction", "input")
    prompt = row.messages(role, "user")
    if role == "instruction" and row.has("input") and row.value("input"):
        joined = f"{row.text('instruction')}\n\n{row.text('input')}"
        prompt = ({"role": "user", "content": joined},)
    if row.has("system") and row.value("system"):
        return ({"role": "system", "content": row.text("system")}, *prompt)
    return prompt


def _answered(row: Row) -> tuple[Messages, str]:
    """Return prompt and response of a row with one conversation or with two columns."""
    conversation = row.first("messages", "conversations")
    if row.has(conversation):
        *prompt, last = row.answered(conversation, "user")
        if not prompt:
            raise row.error(conversation, "a prompt, then a non-empty assistant message", last)
        return tuple(prompt), last["content"]
    role = row.first("response", "completion", "output")
    *between, last = row.answered(role, "assistant")
    return (*_prompt_of(row), *between), last["content"]


def _demonstration(row: Row) -> list[Demonstration]:
    prompt, response = _answered(row)
    return [Demonstration(prompt, response, row.flag("finished"), row.number("reward"))]


def _text(row: Row) -> list[str]:
    return [row.text(row.first("text", "input"))]


def _preference(row: Row) -> list[Preference]:
    prompt, chosen, rejected = _pair(row)
    finished = row.flag("chosen_finished"), row.flag("rejected_finished")
    return [Preference(prompt, chosen, rejected, *finished, row.number("margin") or 0.0)]


def _pair(row: Row) -> tuple[Messages, str, str]:
    if any(row.has(role) for role in ("prompt", "question", "instruction", "input")):
        prompt = _prompt_of(row)
        before, chosen = _after(row, "chosen", prompt)
        other, rejected = _after(row, "rejected", prompt)
        if before != other:
            raise row.error("rejected", "the same messages before the answer as in chosen", other)
        return before, chosen, rejected
    *prompt, chosen = row.answered("chosen", "assistant")
    *other, rejected = row.answered("rejected", "assistant")
    if prompt and prompt == other:
        return tuple(prompt), chosen["content"], rejected["content"]
    if prompt or other:
        expected = "a conversation that differs from `chosen` only in the last message"
        raise row.error("rejected", expected, other)
    return _implicit(row, chosen["content"], rejected["content"])


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


def _implicit(row: Row, chosen: str, rejected: str) -> tuple[Messages, str, str]:
    prompt = common_beginning(chosen, rejected)
    rest, other = chosen[len(prompt) :], rejected[len(prompt) :]
    if not prompt or not rest.strip() or not other.strip():
        expected = (
            "a field 'prompt', or texts in chosen and rejected that begin with the same words"
        )
        raise row.error("chosen", expected, chosen)
    return ({"role": "user", "content": prompt},), rest, other


def _rating(verdict: Callable[[Row], bool]) -> Callable[[Row], list[UnpairedResponse]]:
    def read(row: Row) -> list[UnpairedResponse]:
        if row.has("chosen") and row.has("rejected"):
            (p,) = _preference(row)
            return [
                UnpairedResponse(p.prompt, p.chosen, True, p.chosen_finished),
                UnpairedResponse(p.prompt, p.rejected, False, p.rejected_finished),
            ]
        prompt, response = _answered(row)
        return [UnpairedResponse(prompt, response, verdict(row), row.flag("finished"))]

    return read


def _is_labelled(row: Row) -> bool:
    value = row.value("label")
    if value not in (0, 1):  # True and False are these
        expected = "true, false, 1 or 0 (for a score, set `threshold`)"
        raise row.error("label", expected, value)
    return bool(value)


def _is_over(threshold: float) -> Callable[[Row], bool]:
    return lambda row: row.scalar(row.first("score", "reward", "rating"), float) >= threshold


def _solution(placeholder: str, first_step: str | None) -> Callable[[Row], list[Solution]]:
    def read(row: Row) -> list[Solution]:
        if row.has("value"):
            prompt, steps = _marked_steps(row, placeholder, first_step)
            role, labels = "value", tuple(row.items("value"))
        else:
            prompt = row.messages("prompt", "user")
            steps = row.texts(row.first("steps", "completions"))
            role = row.first("step_labels", "labels")
            labels = tuple(row.items(role))
        if len(labels) != len(steps):
            raise row.error(role, f"{len(steps)} labels, one per step", f"{len(labels)} labels")
        found = tuple(_step_label(row, role, label) for label in labels)
        if all(label is None for label in found):
            raise row.error(role, "a label for at least one step", labels)
        return [Solution(prompt, steps, found)]

    return read


def _marked_steps(
    row: Row, placeholder: str, first_step: str | None
) -> tuple[Messages, tuple[str, ...]]:
    *pieces, rest = row.text("input").split(placeholder)
    if not pieces or rest.strip():
        raise row.error("input", f"steps that each end with the mark '{placeholder}'", rest)
    if first_step is None:
        return (), tuple(piece.strip() for piece in pieces)
    question, mark, step = pieces[0].partition(first_step)
    if not mark or not question.strip():
        expected = f"a question, then a first step that begins with '{first_step}'"
        raise row.error("input", expected, pieces[0])
    steps = (mark + step, *pieces[1:])
    return ({"role": "user", "content": question.strip()},), tuple(s.strip() for s in steps)


def _step_label(row: Row, role: str, label: object) -> float | None:
    if label is None:
        return None
    if label in ("+", "-"):
        return float(label == "+")
    if isinstance(label, bool | int | float) and 0 <= label <= 1:
        return float(label)
    raise row.error(role, "true, false, '+', '-', a number from 0 to 1, or null per step", label)


def _prompt(row: Row) -> list[PromptRow]:
    return [PromptRow(_asked(row), row.others)]


def _asked(row: Row) -> Messages:
    role = row.first(
        "prompt",
        "messages",
        "conversations",
        "context_messages",
        "instruction",
        "input",
        "question",
    )
    if role in ("instruction", "input", "question"):
        return _prompt_of(row)
    found = row.messages(role, "user")
    while role in ("messages", "conversations") and found and found[-1]["role"] == "assistant":
        found = found[:-1]
    if not found:
        raise row.error(role, "a message that is not the assistant's", row.value(role))
    return found


DEMONSTRATIONS = RowKind(
    "demonstrations", [shapes.DEMONSTRATIONS], ("finished", "reward", "system"), _demonstration
)
TEXTS = RowKind("texts", [shapes.TEXTS], (), _text)
PREFERENCES = RowKind(
    "preferences",
    [shapes.PREFERENCES],
    ("margin", "chosen_finished", "rejected_finished", "system"),
    _preference,
)
PROMPTS = RowKind(
    "prompts", [shapes.PROMPTS, shapes.OTHER_PROMPTS], ("system",), _prompt, keeps_columns=True
)


def unpaired_responses(threshold: float | None) -> RowKind[UnpairedResponse]:
    """Build the kind for labelled responses: by a label, or by a score of at least `threshold`."""
    verdicts = ("label",) if threshold is None else ("score", "reward", "rating")
    verdict = _is_labelled if threshold is None else _is_over(threshold)
    extras = ("finished", "chosen_finished", "rejected_finished", "system")
    return RowKind("ratings", [shapes.ratings(*verdicts)], extras, _rating(verdict))


def solutions(placeholder: str, first_step: str | None) -> RowKind[Solution]:
    """Build the kind for solutions in steps; see `stages.datasets.solutions`."""
    return RowKind("solutions", [shapes.SOLUTIONS], (), _solution(placeholder, first_step))
