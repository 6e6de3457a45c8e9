"""Rewards from an HTTP service, with the fields of OpenRLHF's remote reward model.

    request  {"query": […], "prompts": […], "labels": […], …}
    reply    {"rewards": […], "scores": […]?, "extra_logs": {name: […]}?, "reasons": […]?}

Source:
    OpenRLHF, openrlhf/cli/serve_rm.py and openrlhf/utils/agent.py. `messages`, `responses`,
    `finished` and `reasons` are additions, which its services and clients ignore.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from training_core.rewards.json_service import JsonService, ReplyError
from training_core.rewards.reward import RewardResult, Scored, Unscored
from training_core.types import Rollout

MAX_LOGS = 64
LONGEST_REASON = 300


class ServiceReward:
    """Scores rollouts in batches, several at once, so that a slow service works on all of them.

    Args:
        service: where it is.
        batch_size: rollouts per request, at most.
        concurrency: requests at once.
        label_column: column of the prompts' dataset that is sent as `labels`; None sends "".
    """

    def __init__(
        self,
        service: JsonService,
        *,
        batch_size: int,
        concurrency: int,
        label_column: str | None = None,
    ) -> None:
        self._service = service
        self._batch_size = batch_size
        self._concurrency = concurrency
        self._label_column = label_column

    def __call__(self, rollouts: Sequence[Rollout]) -> list[RewardResult]:
        """Score `rollouts`; see `Reward`.

        Raises:
            ConfigError: if the service refuses a request.
            TransientError: if it does not answer, after retries.
        """
        results: list[RewardResult] = [
            Unscored(f"the prompt's row has no column '{self._label_column}'")
        ] * len(rollouts)
        known = [i for i, rollout in enumerate(rollouts) if self._has_label(rollout)]
        batches = [known[i : i + self._batch_size] for i in range(0, len(known), self._batch_size)]
        with ThreadPoolExecutor(self._concurrency) as pool:
            scored = pool.map(lambda batch: self._score([rollouts[i] for i in batch]), batches)
            for batch, found in zip(batches, scored, strict=True):
                for i, result in zip(batch, found, strict=True):
                    results[i] = result
        return results

    def _has_label(self, rollout: Rollout) -> bool:
        return self._label_column is None or self._label_column in rollout.prompt.columns

    def _score(self, rollouts: Sequence[Rollout]) -> list[RewardResult]:
        try:
            return results_in(self._service.post(self._request(rollouts)), len(rollouts))
        except ReplyError as error:
            return [Unscored(str(error))] * len(rollouts)

    def _request(self, rollouts: Sequence[Rollout]) -> dict[str, list[Any]]:
        column = self._label_column
        return {
            "query": [r.prompt.text + r.text for r in rollouts],
            "prompts": [r.prompt.text for r in rollouts],
            "labels": [r.prompt.columns[column] if column else "" for r in rollouts],
            "messages": [list(r.prompt.messages) for r in rollouts],
            "responses": [r.text for r in rollouts],
            "finished": [r.is_finished for r in rollouts],
        }


def results_in(reply: object, size: int) -> list[RewardResult]:
    """Return the results in a reply to a request of `size` rollouts.

    A number may also be a list with one number. null is no reward, whatever the reason.

    Raises:
        ReplyError: if the reply does not have `rewards` for each rollout, or has other fields that
            are no lists of this size.
    """
    if not isinstance(reply, dict):
        raise ReplyError(f"expected a reply with `rewards`, found {reply!r:.80}")
    rewards = _list_in(reply, "rewards", size)
    has_reasons = reply.get("reasons") is not None
    reasons = _list_in(reply, "reasons", size) if has_reasons else [None] * size
    components = _components_in(reply, size)
    return [_result(*parts) for parts in zip(rewards, reasons, components, strict=True)]


def _result(reward: object, reason: object, components: Mapping[str, float]) -> RewardResult:
    if reward is None:
        why = reason if isinstance(reason, str) else "the service gave no reward"
        return Unscored(why[:LONGEST_REASON])
    number = _number(reward)
    if number is None:
        return Unscored(f"expected a number from the service, found {reward!r:.80}")
    return Scored(number, components)


def _components_in(reply: Mapping[str, Any], size: int) -> list[dict[str, float]]:
    """Return `scores` and `extra_logs` by rollout; what is no finite number is left out."""
    found: list[dict[str, float]] = [{} for _ in range(size)]
    for name, values in _logs_in(reply, size):
        for components, value in zip(found, values, strict=True):
            number = _number(value)
            if number is not None and math.isfinite(number):
                components[name] = number
    return found


def _logs_in(reply: Mapping[str, Any], size: int) -> Iterator[tuple[str, list[Any]]]:
    if reply.get("scores") is not None:
        yield "score", _list_in(reply, "scores", size)
    logs = reply.get("extra_logs") or {}
    if not isinstance(logs, dict) or len(logs) > MAX_LOGS:
        raise ReplyError(f"expected extra_logs with at most {MAX_LOGS} names, found {logs!r:.80}")
    for name in logs:
        if not re.fullmatch(r"[A-Za-z]\w{0,63}", name, re.ASCII):
            raise ReplyError(f"expected a name in extra_logs, e.g. length, found {name!r:.80}")
        yield name, _list_in(logs, name, size)


def _list_in(fields: Mapping[str, Any], name: str, size: int) -> list[Any]:
    values = fields.get(name)
    if not isinstance(values, list) or len(values) != size:
        found = f"{len(values)} values" if isinstance(values, list) else f"{values!r:.80}"
        raise ReplyError(f"expected `{name}` with {size} values, found {found}")
    return values


def _number(value: object) -> float | None:
    """Return a number of JSON, or the only one in a list."""
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    if not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
