"""The forms in which datasets write the turns of a conversation, as tables."""

from __future__ import annotations

from collections.abc import Mapping

from training_core.messages import Message

ROLES = ("system", "user", "assistant", "tool")
TURNS = (
    ("role", "content"),
    ("from", "value"),
    ("role", "value"),
    ("from", "content"),
    ("role", "text"),
    ("speaker", "text"),
    ("speaker", "utterance"),
    ("speaker", "content"),
    ("author", "text"),
    ("author", "content"),
    ("sender", "text"),
)
"""Keys of one turn: who speaks, and what is said."""

EXCHANGES = (
    ("user", "assistant"),
    ("human", "assistant"),
    ("human", "gpt"),
    ("human", "bot"),
    ("user", "bot"),
    ("prompt", "response"),
    ("question", "answer"),
)
"""Keys of one exchange: what the user says, and what the assistant answers."""

AUTHORS: Mapping[str, str] = {
    **{role: role for role in ROLES},
    **dict.fromkeys(("human", "prompter", "customer"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "ai", "bot", "chatbot", "model", "agent"), "assistant"),
    **dict.fromkeys(("function", "observation"), "tool"),
}
"""Author of a turn, in lower case -> role."""

SPEAKERS = {**AUTHORS, "system": "assistant"}
"""The same for `speaker`: in such dialogues the system is the one that answers."""

UNSEEN_KEYS = ("tool_calls", "reasoning_content", "thinking")
"""Keys of a message that a template may render but that are not kept here; they must be empty."""

EXPECTED = (
    f"a text or a list of {{role, content}} messages with roles of {', '.join(ROLES)} "
    "(docs/data.md has a table of other forms)"
)


def form_of_turn(turn: object) -> tuple[str, str] | None:
    """Return the keys of `TURNS` or `EXCHANGES` that a turn has; None if it has none of them."""
    if not isinstance(turn, Mapping):
        return None
    forms = (form for form in TURNS if all(turn.get(key) is not None for key in form))
    exchanges = (form for form in EXCHANGES if isinstance(turn.get(form[0]), str))
    return next(forms, None) or next((e for e in exchanges if set(e) <= set(turn)), None)


def messages_in(turn: object) -> tuple[Message, ...] | str:
    """Convert one turn or exchange; the last exchange of a conversation may lack its answer.

    Returns:
        One or two messages; for an invalid turn, a text that describes what was expected.
    """
    form = form_of_turn(turn)
    if form is None or not isinstance(turn, Mapping):
        return EXPECTED
    for key in UNSEEN_KEYS:
        if turn.get(key):
            return f"messages without '{key}', which would be lost; write it into `content`"
    if form in EXCHANGES:
        said = zip(("user", "assistant"), (turn[key] for key in form), strict=True)
        spoken = [(role, text) for role, text in said if text is not None]
    else:
        author, text = turn[form[0]], turn[form[1]]
        known = SPEAKERS if form[0] == "speaker" else AUTHORS
        spoken = [(known.get(str(author).lower(), ""), text)]
    if not all(role and isinstance(text, str) for role, text in spoken):
        return EXPECTED
    return tuple({"role": role, "content": text} for role, text in spoken)
