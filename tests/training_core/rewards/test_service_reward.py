"""Rewards of a real HTTP service: each kind of reply, and a failure that is never 0.0."""

from __future__ import annotations

import math
import threading

import pytest
from starlette.responses import Response

from tests.http_server import answering, closed_port, serving
from training_core.errors import ConfigError, DataError, TransientError
from training_core.rewards.json_service import JsonService
from training_core.rewards.reward import Scored, Unscored, score
from training_core.rewards.service_reward import ServiceReward
from training_core.types import Prompt, Rollout


def rollout(text="", prompt="two tea", **columns):
    asked = Prompt("7", ({"role": "user", "content": prompt},), f"<user>{prompt}", (1, 2), columns)
    return Rollout(asked, (5, 2), (-1.0, -1.0), text, is_finished=True, policy_version=0)


def reward_at(url, *, batch_size=8, concurrency=2, label_column=None, timeout_seconds=20):
    service = JsonService(
        url,
        token=None,
        connections=concurrency,
        timeout_seconds=timeout_seconds,
        retries=1,
        backoff_seconds=0.0,
    )
    return ServiceReward(
        service, batch_size=batch_size, concurrency=concurrency, label_column=label_column
    )


def results_of(reply, rollouts=None):
    """What the reward makes of a reply, which is a JSON value or a text."""
    made = Response(reply) if isinstance(reply, str) else reply
    with serving(answering(lambda *_: made)) as url:
        return reward_at(url)(rollouts or [rollout("a")])


def test_the_request_has_the_fields_of_openrlhf_and_more():
    seen = []

    def answer(body, _):
        seen.append(body)
        return {"rewards": [1.0, 2.0]}

    with serving(answering(answer)) as url:
        reward = reward_at(url, label_column="gold")
        reward([rollout("ok", gold="7"), rollout("no", gold=[1, "b"])])
    assert seen == [
        {
            "query": ["<user>two teaok", "<user>two teano"],
            "prompts": ["<user>two tea"] * 2,
            "labels": ["7", [1, "b"]],
            "messages": [[{"role": "user", "content": "two tea"}]] * 2,
            "responses": ["ok", "no"],
            "finished": [True, True],
        }
    ]


def test_batches_are_sent_at_once_and_results_keep_their_order():
    together = threading.Barrier(3)  # would break if a request waited for the one before it

    def answer(body):
        together.wait(60)
        return {"rewards": [float(text) for text in body["responses"]]}

    rollouts = [rollout(str(i)) for i in range(5)]  # batches of 2, 2 and 1
    with serving(answering_in_threads(answer)) as url:
        found = reward_at(url, batch_size=2, concurrency=3)(rollouts)
    assert [result.reward for result in found] == [0.0, 1.0, 2.0, 3.0, 4.0]


def answering_in_threads(answer):
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def endpoint(request):
        return JSONResponse(await run_in_threadpool(answer, await request.json()))

    return Starlette(routes=[Route("/", endpoint, methods=["POST"])])


def test_scores_and_logs_become_components():
    reply = {"rewards": [0.5], "scores": [1], "extra_logs": {"length": [3], "odd": [None]}}
    assert results_of(reply) == [Scored(0.5, {"score": 1.0, "length": 3.0})]
    assert results_of('{"rewards": [0.5], "extra_logs": {"length": [NaN]}}') == [Scored(0.5, {})]


def test_a_number_may_be_in_a_list_and_zero_and_true_are_numbers():
    three = [rollout("a")] * 3
    found = results_of({"rewards": [[0.5], 0.0, True]}, three)
    assert found == [Scored(0.5, {}), Scored(0.0, {}), Scored(1.0, {})]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ({"rewards": [None]}, "the service gave no reward"),
        ({"rewards": [None], "reasons": ["no label"]}, "no label"),
        ({"rewards": [None], "reasons": None, "scores": None}, "the service gave no reward"),
        ({"rewards": ["1.0"]}, "expected a number from the service, found '1.0'"),
        ({"rewards": [[1.0, 2.0]]}, r"expected a number from the service, found [1.0, 2.0]"),
        ({"rewards": []}, "expected `rewards` with 1 values, found 0 values"),
        ({"rewards": [1.0, 2.0]}, "expected `rewards` with 1 values, found 2 values"),
        ({"rewards": 1.0}, "expected `rewards` with 1 values, found 1.0"),
        ({"scores": [1.0]}, "expected `rewards` with 1 values, found None"),
        ([1.0], "expected a reply with `rewards`, found [1.0]"),
        ({"rewards": [1.0], "scores": [1, 2]}, "expected `scores` with 1 values, found 2 values"),
        (
            {"rewards": [1.0], "extra_logs": {"a": 1}},
            "expected `a` with 1 values, found 1",
        ),
        (
            {"rewards": [1.0], "extra_logs": {"\x1b[2J": [1]}},
            "expected a name in extra_logs, e.g. length, found '\\x1b[2J'",
        ),
        ("", "the reply is no JSON: ''"),
        ("<html>", "the reply is no JSON: '<html>'"),
    ],
)
def test_a_malformed_reply_is_a_reason(reply, reason):
    assert results_of(reply) == [Unscored(reason)]


@pytest.mark.parametrize(("number", "said"), [("NaN", "nan"), ("1e999", "inf"), ("-1e999", "-inf")])
def test_a_reward_that_is_not_finite_is_unscored(number, said):
    text = f'{{"rewards": [{number}, 0.0]}}'
    both = [rollout("a"), rollout("b")]
    with serving(answering(lambda *_: Response(text))) as url:
        (kept,) = score(reward_at(url), both, unscored_limit=0.5)
        with pytest.raises(DataError, match=f"1x the reward is {said}"):
            score(reward_at(url), both, unscored_limit=0.0)
    assert (kept.rollout.text, kept.reward) == ("b", 0.0)


def test_a_malformed_reply_costs_only_its_own_batch():
    def answer(body, _):
        return {"rewards": [2.0]} if body["responses"] == ["b"] else {"rewards": "?"}

    with serving(answering(answer)) as url:
        first, second = reward_at(url, batch_size=1)([rollout("a"), rollout("b")])
    assert isinstance(first, Unscored)
    assert second == Scored(2.0, {})


def test_a_row_without_the_label_is_unscored_and_not_sent():
    seen = []

    def answer(body, _):
        seen.append(body["labels"])
        return {"rewards": [0.0]}

    with serving(answering(answer)) as url:
        reward = reward_at(url, label_column="gold")
        found = reward([rollout("a"), rollout("a", gold="7")])
    assert found == [Unscored("the prompt's row has no column 'gold'"), Scored(0.0, {})]
    assert seen == [["7"]]


def test_nothing_to_score_asks_nobody():
    assert reward_at(f"http://127.0.0.1:{closed_port()}")([]) == []


def test_a_dead_service_is_a_transient_error_and_no_reward():
    with pytest.raises(TransientError, match="did not answer after 1 retries"):
        reward_at(f"http://127.0.0.1:{closed_port()}")([rollout("a")])


def test_a_service_that_refuses_stops_the_stage():
    with (
        serving(answering(lambda *_: Response("no such model", 404))) as url,
        pytest.raises(ConfigError, match=r"answered 404; .*'no such model'"),
    ):
        reward_at(url)([rollout("a")])


def test_rewards_are_finite_floats():
    (found,) = results_of({"rewards": [3]})
    assert isinstance(found, Scored)
    assert type(found.reward) is float
    assert math.isfinite(found.reward)
