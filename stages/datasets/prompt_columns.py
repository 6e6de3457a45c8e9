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
    role = row.first(*PROMPT_ROLES)
    prompt = row.messages(role, "user")
    if role == "instruction" and row.has("input") and as_text(row.value("input")):
        joined = f"{row.text('instruction')}\n\n{row.text('input')}"
        prompt = ({"role": "user", "content": joined},)
    if row.has("system") and row.value("system"):
        return ({"role": "system", "content": row.text("system")}, *prompt)
    return prompt


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
