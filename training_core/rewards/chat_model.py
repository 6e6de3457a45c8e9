"""A chat model behind an OpenAI-compatible address, asked for verdicts that are cached on disk."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from training_core.messages import Messages
from training_core.rewards.json_service import JsonService, ReplyError
from training_core.rewards.reward import Unscored
from training_core.storage import writing

Judgement = TypeVar("Judgement")

FIELD = re.compile(r"\{([a-z_]+)\}")
END_OF_THINKING = "</think>"
SHOWN_CHARACTERS = 200


@dataclass(frozen=True)
class ChatModel:
    """A model that answers one message.

    Attributes:
        service: its address, which ends with /chat/completions.
        model: name of the model.
        temperature: temperature of its answers.
        max_reply_tokens: limit of an answer.
        cache: folder of the answers that were understood; None keeps none.
    """

    service: JsonService
    model: str
    temperature: float
    max_reply_tokens: int
    cache: Path | None = None

    def ask(
        self, question: str, read: Callable[[str], Judgement | Unscored]
    ) -> Judgement | Unscored:
        """Ask a question; the same question is not asked again.

        Args:
            question: content of the only message.
            read: answer, without the model's thinking -> verdict, or why there is none.

        Returns:
            The verdict, or why there is none.

        Raises:
            ConfigError: if the service refuses the request.
            TransientError: if it does not answer, after retries.
        """
        request = {
            "model": self.model,
            "messages": [{"role": "user", "content": question}],
            "temperature": self.temperature,
            "max_tokens": self.max_reply_tokens,
        }
        file = self._file(request)
        cached = _cached(file)
        if cached is not None and not isinstance(verdict := read(cached), Unscored):
            return verdict
        try:
            answer = _content(self.service.post(request))
        except ReplyError as error:
            return Unscored(str(error))
        verdict = read(answer)
        if file is not None and not isinstance(verdict, Unscored):
            _keep(file, answer)
        return verdict

    def _file(self, request: Mapping[str, Any]) -> Path | None:
        if self.cache is None:
            return None
        text = json.dumps({"url": self.service.url, **request}, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return self.cache / digest[:2] / f"{digest}.json"


def _cached(file: Path | None) -> str | None:
    """Return a kept answer; None if there is none, or its file is damaged."""
    if file is None:
        return None
    try:
        kept = json.loads(file.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    answer = kept.get("answer") if isinstance(kept, dict) else None
    return answer if isinstance(answer, str) else None


def _keep(file: Path, answer: str) -> None:
    """Write an answer in one step, because several stages may share the folder."""
    with writing(f"the judge's answer {file}"):
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}.{uuid4().hex}")
        draft.write_text(json.dumps({"answer": answer}))
        draft.replace(file)


def _content(reply: object) -> str:
    """Return the text of a reply's first choice, without the model's thinking."""
    match reply:
        case {"choices": [{"message": {"content": str(content)}}, *_]}:
            return content.rpartition(END_OF_THINKING)[2]
    raise ReplyError(f"expected a reply with choices[0].message.content, found {reply!r:.200}")


def filled(template: str, values: Mapping[str, str]) -> str:
    """Replace each `{name}` of a template once; values are not read as templates.

    Python's own formats could reach attributes of objects, and a value that has braces would be
    read again by a second replacement.
    """
    return FIELD.sub(lambda match: values.get(match[1], match[0]), template)


def conversation(messages: Messages) -> str:
    """Return the text of a prompt: its only message, or all messages with their roles."""
    if len(messages) == 1:
        return messages[0]["content"]
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)


def only_line(name: str, pattern: str, answer: str) -> str | Unscored:
    """Return what the only line `name: …` of an answer has, if it matches a pattern."""
    found = re.findall(rf"^[ \t]*{name}:[ \t]*({pattern})[ \t]*$", answer, re.MULTILINE | re.I)
    if len(found) != 1:
        shown = answer[-SHOWN_CHARACTERS:]
        return Unscored(f"expected one line '{name}: …' from the judge, found {shown!r}")
    return found[0]
