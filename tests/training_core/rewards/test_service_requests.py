"""Requests to a reward service become rollouts, and results become replies."""

from __future__ import annotations

import math

import pytest

from training_core.errors import DataError
from training_core.rewards.reward import Scored, Unscored
from training_core.rewards.service_requests import reply_of, rollouts_in
from training_core.rewards.service_reward import results_in

ASKED = [{"role": "user", "content": "two tea"}]


def test_messages_and_responses_are_used_as_they_are():
    request = {
        "query": ["ignored"],
        "prompts": ["ignored"],
        "messages": [ASKED],
        "responses": ["ok"],
        "labels": [7],
        "finished": [False],
    }
    (found,) = rollouts_in(request)
    assert (found.prompt.messages, found.text, found.is_finished) == (tuple(ASKED), "ok", False)
    assert found.prompt.columns == {"label": 7}


def test_the_fields_of_openrlhf_suffice():
    first, second = rollouts_in({"query": ["two tea ok", "b"], "prompts": ["two tea", ""]})
    assert (first.prompt.messages, first.text) == (tuple(ASKED), " ok")
    assert (first.is_finished, first.prompt.columns) == (True, {"label": ""})
    assert second.text == "b"


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ([], "expected a JSON object with `query` and `prompts`, found"),
        ({}, "expected `prompts` to be a list, found None"),
        ({"query": ["a"]}, "expected `prompts` to be a list, found None"),
        ({"query": "a", "prompts": ["a"]}, "expected `query` to be a list, found 'a'"),
        ({"query": [], "prompts": ["a"]}, "expected `query` with 1 values, found 0"),
        ({"query": [1], "prompts": ["a"]}, r"query\[0\]: expected a text, found 1"),
        ({"query": ["b"], "prompts": ["a"]}, r"query\[0\]: expected a text that begins with"),
        ({"messages": [ASKED]}, "expected `responses` to be a list, found None"),
        ({"responses": ["a"]}, "expected `messages` to be a list, found None"),
        ({"responses": ["a"], "messages": [[]]}, r"messages\[0\]: expected a list of {role, cont"),
        ({"responses": ["a"], "messages": [[{"role": "user"}]]}, r"messages\[0\]: expected a list"),
        (
            {"responses": ["a"], "messages": [ASKED], "labels": []},
            "expected `labels` with 1 values, found 0",
        ),
    ],
)
def test_a_malformed_request_is_refused_with_the_field(request_, message):
    with pytest.raises(DataError, match=message):
        rollouts_in(request_)


def test_a_reply_says_what_the_client_reads_and_never_zero_for_a_failure():
    results = [0.0, Scored(1.5, {"length": 3.0}), Unscored("timeout"), math.nan]
    reply = reply_of(results)
    assert reply == {
        "rewards": [0.0, 1.5, None, None],
        "extra_logs": {"length": [None, 3.0, None, None]},
        "reasons": [None, None, "timeout", "the reward is nan"],
    }
    assert results_in(reply, 4) == [
        Scored(0.0, {}),
        Scored(1.5, {"length": 3.0}),
        Unscored("timeout"),
        Unscored("the reward is nan"),
    ]
    assert reply_of([1.0]) == {"rewards": [1.0]}
