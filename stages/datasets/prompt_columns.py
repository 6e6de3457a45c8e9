"""The prompt of a row, from the columns that may hold it."""

from __future__ import annotations

from stages.datasets.row import Row
from stages.datasets.shapes import QUESTIONS
from stages.datasets.trees import Node, is_tree, wrong_message
from training_core.messages import Messages
from training_core.number_text import as_text

PROMPT_ROLES = (*QUESTIONS, "user")


def prompt_of(row: Row) -> Messages:
    """Return the prompt of a row, with its system prompt and the input of its instruction.

    Raises:
        DataError: if the row has none.
    """
    return with_system(row, question_of(row))


def question_of(row: Row) -> Messages:
    """Return the prompt of a row without the column `system`.

    Raises:
        DataError: if the row has none.
    """
    role = row.first(*PROMPT_ROLES)
    prompt = row.messages(role, "user")
    if role == "instruction" and row.has("input") and as_text(row.value("input")):
        joined = f"{row.text('instruction')}\n\n{row.text('input')}"
        return ({"role": "user", "content": joined},)
    return prompt


def with_system(row: Row, messages: Messages) -> Messages:
    """Return messages that begin with the row's column `system`, if it has a value.

    Raises:
        DataError: if they begin with a different system prompt already.
    """
    if not row.has("system") or not row.value("system"):
        return messages
    system = {"role": "system", "content": row.text("system")}
    if messages[:1] == (system,):
        return messages
    if messages and messages[0]["role"] == "system":
        expected = f"the system prompt of the messages, {messages[0]['content'][:120]!r}"
        raise row.error("system", expected, system["content"])
    return (system, *messages)


def tree_in(row: Row) -> Node:
    """Return the conversation tree of a row.

    Raises:
        DataError: if it is none, or one of its messages is not valid.
    """
    tree = row.value("tree")
    if not is_tree(tree):
        raise row.error("tree", "a message {text, role, replies}", tree)
    if wrong := wrong_message(tree):
        expected = "messages {text, role, rank} with roles of prompter and assistant"
        raise row.error("tree", expected, {k: v for k, v in wrong.items() if k != "replies"})
    return tree
