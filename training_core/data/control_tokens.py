"""Control tokens, e.g. the end token, that stand in a text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from training_core.errors import DataError
from training_core.messages import Message


def control_tokens(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    """Return a pattern for the texts of the control tokens, e.g. the end token.

    The token for unknown words is none of them: as text it means the same.
    """
    added: Any = tokenizer.added_tokens_decoder
    found = {str(token) for token in added.values() if token.special} | {
        *tokenizer.all_special_tokens
    }
    found -= {"", str(tokenizer.unk_token)}
    return re.compile("|".join(map(re.escape, sorted(found, key=len, reverse=True))) or "(?!)")


def require_no_control_tokens(
    tokenizer: PreTrainedTokenizerBase,
    conversations: Sequence[Sequence[Message]],
    names: Sequence[str] | None,
) -> None:
    """Refuse a control token in a message, where it would e.g. end the turn or forge another.

    Args:
        tokenizer: any tokenizer.
        conversations: their messages.
        names: of the conversations, for errors.

    Raises:
        DataError: naming the conversation, who wrote the message, and the token.
    """
    pattern = control_tokens(tokenizer)
    for place, messages in enumerate(conversations):
        for message in messages:
            if found := pattern.search(message["content"]):
                raise DataError(
                    f"prompt {names[place] if names else '?'}: a message by the {message['role']} "
                    f"contains {found[0]!r} as text, which is a control token of the tokenizer; "
                    "remove it from the text, or remove the row"
                )
