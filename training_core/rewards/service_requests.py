"""The server's side of a reward service: request -> rollouts, results -> reply.

`training_core.rewards.service_reward` describes the fields and is a client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from training_core.errors import DataError
from training_core.rewards.reward import RewardResult, Unscored, checked
from training_core.types import Prompt, Rollout


def rollouts_in(request: object) -> list[Rollout]:
    """Return the rollouts that a request asks about; they have texts, but no tokens.

    With `messages` and `responses` these are used. Otherwise each of `prompts` is one message of
    the user, and the response is what follows it in `query`. A label is the column `label`.

    Raises:
        DataError: if a field is missing, or has other values than expected.
    """
    if not isinstance(request, dict):
        raise DataError(f"expected a JSON object with `query` and `prompts`, found {request!r:.80}")
    if "messages" in request or "responses" in request:
        responses = _texts(request, "responses", None)
        conversations = [
            _conversation(one, i) for i, one in enumerate(_list(request, "messages", responses))
        ]
    else:
        prompts = _texts(request, "prompts", None)
        queries = _texts(request, "query", prompts)
        responses = [
            _response(query, prompt, i)
            for i, (query, prompt) in enumerate(zip(queries, prompts, strict=True))
        ]
        conversations = [({"role": "user", "content": prompt},) for prompt in prompts]
    labels = _list(request, "labels", responses) if "labels" in request else [""] * len(responses)
    finished = (
        _list(request, "finished", responses) if "finished" in request else [True] * len(responses)
    )
    return [
        Rollout(
            Prompt(str(i), messages, "", (), {"label": label}),
            response_ids=(),
            logprobs=(),
            text=text,
            is_finished=is_finished is True,
            policy_version=0,
        )
        for i, (messages, text, label, is_finished) in enumerate(
            zip(conversations, responses, labels, finished, strict=True)
        )
    ]


def reply_of(results: Sequence[RewardResult]) -> dict[str, Any]:
    """Return the reply with the results; what has no reward is null, with its reason."""
    found = [checked(result) for result in results]
    rewards = [None if isinstance(one, Unscored) else one.reward for one in found]
    reply: dict[str, Any] = {"rewards": rewards}
    components = [{} if isinstance(one, Unscored) else one.components for one in found]
    if names := sorted({name for one in components for name in one}):
        reply["extra_logs"] = {name: [one.get(name) for one in components] for name in names}
    if None in rewards:
        reply["reasons"] = [one.reason if isinstance(one, Unscored) else None for one in found]
    return reply


def _list(request: Mapping[str, Any], name: str, others: Sequence[object] | None) -> list[Any]:
    values = request.get(name)
    if not isinstance(values, list):
        raise DataError(f"expected `{name}` to be a list, found {values!r:.80}")
    if others is not None and len(values) != len(others):
        raise DataError(f"expected `{name}` with {len(others)} values, found {len(values)}")
    return values


def _texts(request: Mapping[str, Any], name: str, others: Sequence[object] | None) -> list[str]:
    values = _list(request, name, others)
    for i, value in enumerate(values):
        if not isinstance(value, str):
            raise DataError(f"{name}[{i}]: expected a text, found {value!r:.80}")
    return values


def _response(query: str, prompt: str, number: int) -> str:
    if not query.startswith(prompt):
        raise DataError(
            f"query[{number}]: expected a text that begins with prompts[{number}], found "
            f"{query!r:.80}; send `messages` and `responses` instead"
        )
    return query.removeprefix(prompt)


def _conversation(value: object, number: int) -> tuple[dict[str, str], ...]:
    if not isinstance(value, list) or not value or not all(map(_is_message, value)):
        raise DataError(
            f"messages[{number}]: expected a list of {{role, content}}, found {value!r:.80}"
        )
    return tuple(value)


def _is_message(value: object) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"role", "content"}
        and all(isinstance(text, str) for text in value.values())
    )
