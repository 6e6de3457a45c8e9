"""Conversation trees, as OpenAssistant publishes them: each message may have several replies.

A tree is a message {text, role, rank, replies}; `rank` orders the replies to one message, from 0
for the best. A file has a tree in each row, or a message in each row, with the id of its parent.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeGuard

from stages.datasets.turn_forms import form_of_turn, messages_in
from training_core.messages import Messages

Node = Mapping[str, Any]
"""A message of a tree."""

FLAT = ("message_id", "parent_id", "role", "text")
"""Columns of a file that has a message in each row."""


def is_tree(value: object) -> TypeGuard[Node]:
    """Whether a value is a message with replies."""
    return form_of_turn(value) is not None and isinstance(value, Mapping) and "replies" in value


def with_tree(columns: Mapping[str, str], rows: Iterable[Mapping[str, object]]) -> dict[str, str]:
    """Return role -> column with the column of trees as `tree`, if the first row has one."""
    first = next(iter(rows), {})
    found = [role for role, column in columns.items() if is_tree(first.get(column))]
    if "tree" in columns or len(found) != 1:
        return dict(columns)
    others = {role: column for role, column in columns.items() if role != found[0]}
    return {**others, "tree": columns[found[0]]}


def wrong_message(tree: Node) -> Node | None:
    """Return the first message of unknown role, without text or with a rank that is no number."""
    for *_, node in _paths(tree):
        rank = node.get("rank")
        is_ranked = isinstance(rank, int | float) and math.isfinite(rank)
        said = "".join(message["content"] for message in messages_along([node]))
        if not said.strip() or not (rank is None or is_ranked):
            return node
    return None


def best_path(tree: Node) -> Messages:
    """Return the messages from the root through the best replies, to the last of the assistant.

    Args:
        tree: without a `wrong_message`.
    """
    path = [tree]
    while replies := _replies(path[-1]):
        path.append(min(replies, key=_rank))
    messages = messages_along(path)
    while messages and messages[-1]["role"] != "assistant":
        messages = messages[:-1]
    return messages


def ranked_pairs(tree: Node) -> Iterator[tuple[Messages, str, str]]:
    """Yield (prompt, better, worse) for every two answers to one message that differ in rank.

    Args:
        tree: without a `wrong_message`.
    """
    for path in _paths(tree):
        prompt = messages_along(path)
        ranked = sorted((r for r in _replies(path[-1]) if r.get("rank") is not None), key=_rank)
        for better, worse in combinations(ranked, 2):
            chosen, rejected = messages_along([better, worse])
            if _rank(better) < _rank(worse) and chosen["role"] == rejected["role"] == "assistant":
                yield prompt, chosen["content"], rejected["content"]


def messages_along(path: Sequence[Node]) -> Messages:
    """Return the messages of a path as role and content."""
    return tuple(m for node in path for m in messages_in(node) if not isinstance(m, str))


def trees_of(
    rows: Iterable[tuple[int, Node]],
) -> tuple[list[tuple[int, Node]], list[tuple[int, str]]]:
    """Build the trees of a file that has a message in each row.

    Args:
        rows: (number, row) of each message.

    Returns:
        (number of its root's row, columns of that row and `tree`) for each tree; (number, reason)
        for each message whose parent is not in the file.
    """
    nodes = {
        row["message_id"]: (number, {**row, "replies": list(row.get("replies") or ())})
        for number, row in rows
    }
    trees: list[tuple[int, Node]] = []
    lost: list[tuple[int, str]] = []
    for number, node in nodes.values():
        parent = node["parent_id"]
        if not parent:
            others = {name: value for name, value in node.items() if name not in (*FLAT, "replies")}
            trees.append((number, {**others, "tree": node}))
        elif parent in nodes:
            nodes[parent][1]["replies"].append(node)
        else:
            lost.append((number, f"expected the id of a message of the file, found {parent!r:.60}"))
    return trees, lost


def _paths(tree: Node) -> Iterator[list[Node]]:
    """Yield the path from the root to each message that is not deleted, short ones first."""
    paths = deque([[tree]])
    while paths:
        path = paths.popleft()
        yield path
        paths += ([*path, reply] for reply in _replies(path[-1]))


def _replies(node: Node) -> list[Node]:
    return [reply for reply in node.get("replies") or () if not reply.get("deleted")]


def _rank(node: Node) -> float:
    """Return the rank of a reply; one without a rank comes last."""
    return math.inf if node.get("rank") is None else float(node["rank"])
