"""Conversations whose turns are in an order that not every chat template accepts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from stages.datasets.row_types import PromptedRow, PromptRow


def about_turns(rows: Sequence[PromptedRow]) -> Iterator[str]:
    """Yield a note for each kind of unusual order, with the number of rows and the first one.

    Templates differ: Llama 3 and ChatML render any order, Llama 2, Mistral and Gemma refuse these.
    So the template decides, and the note says that its text should be looked at.
    """
    found: dict[str, list[str]] = {}
    for row in rows:
        roles = [message["role"] for message in row.prompt]
        for order in _unusual(roles if isinstance(row, PromptRow) else [*roles, "assistant"]):
            found.setdefault(order, []).append(row.where)
    for order, places in found.items():
        first = f" (the first: {places[0]})" if places[0] else ""
        yield (
            f"{len(places)} rows have {order}{first}; the chat template accepts them or stops the "
            "step, so look at how it renders them"
        )


def _unusual(roles: Sequence[str]) -> Iterator[str]:
    if "system" in roles[1:]:
        yield "a system message after another message"
    spoken = [role for role in roles if role != "system"]
    if spoken[:1] == ["assistant"] and len(spoken) > 1:
        yield "an assistant's message first"
    for role in ("user", "assistant"):
        if (role, role) in pairwise(spoken):
            yield f"two messages of the {role} in a row"
