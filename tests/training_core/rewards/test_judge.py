"""A language model as judge, behind a real HTTP server with the API of OpenAI."""

from __future__ import annotations

import json
import re

import pytest
from starlette.responses import Response

from tests.http_server import answering, closed_port, serving
from training_core.errors import ConfigError, TransientError
from training_core.rewards.chat_model import ChatModel, filled
from training_core.rewards.json_service import JsonService
from training_core.rewards.judge import JudgeReward, PairwiseJudge
from training_core.rewards.reward import Unscored
from training_core.types import Prompt, Rollout

TEMPLATE = "{low} to {high}: how good is <{response}> for <{prompt}>?"
CHOICE = "<{prompt}> A <{response_a}> B <{response_b}>"


def rollout(text, prompt="two tea", **columns):
    asked = Prompt("7", ({"role": "user", "content": prompt},), "", (1, 2), columns)
    return Rollout(asked, (5, 2), (-1.0, -1.0), text, is_finished=True, policy_version=0)


class Server:
    """Answers with a function of the question, and remembers the requests."""

    def __init__(self, answer):
        self.requests = []
        self._answer = answer

    def __call__(self, body, _):
        self.requests.append(body)
        answer = self._answer(self.questions[-1])
        if not isinstance(answer, str):
            return answer
        return {"choices": [{"message": {"role": "assistant", "content": answer}}]}

    @property
    def questions(self):
        return [request["messages"][0]["content"] for request in self.requests]


def model_at(url, **options):
    service = JsonService(
        url, token=None, connections=2, timeout_seconds=20, retries=1, backoff_seconds=0.0
    )
    settings = {"model": "judge-1", "temperature": 0.0, "max_reply_tokens": 64, **options}
    return ChatModel(service, **settings)


def ratings(server, rollouts, template=TEMPLATE, label_column=None, **options):
    with serving(answering(server)) as url:
        reward = JudgeReward(
            model_at(url, **options),
            template,
            low=0,
            high=10,
            concurrency=2,
            label_column=label_column,
        )
        return reward(rollouts)


def test_each_response_gets_the_number_of_the_judge():
    def by_length(question):
        response = re.search(r"<(.*?)>", question)[1]
        return f"It has some words.\nScore: {len(response.split())}"

    server = Server(by_length)
    found = ratings(server, [rollout("a b c"), rollout(""), rollout("a b")])
    assert found == [3.0, 0.0, 2.0]
    assert sorted(server.questions)[0] == "0 to 10: how good is <> for <two tea>?"
    request = server.requests[0]
    assert {name: request[name] for name in ("model", "temperature", "max_tokens")} == {
        "model": "judge-1",
        "temperature": 0.0,
        "max_tokens": 64,
    }


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Score: 7", 7.0),
        ("fine.\n score: 0.5 \n", 0.5),
        ("Score: 0", 0.0),
        ("<think>\nScore: 3\n</think>\nScore: 10", 10.0),
        ("", "expected one line 'Score: …' from the judge, found ''"),
        ("I would say 7.", "expected one line 'Score: …' from the judge, found 'I would say 7.'"),
        ("Score: 7/10", "expected one line 'Score: …' from the judge, found 'Score: 7/10'"),
        ("Score: NaN", "expected one line 'Score: …' from the judge, found 'Score: NaN'"),
        ("Score: 1e9", "expected one line 'Score: …' from the judge, found 'Score: 1e9'"),
        ("Score: 3\nScore: 4", "expected one line 'Score: …' from the judge, found 'Score: 3\\n"),
        ("Score: 11", "expected a score from 0 to 10 from the judge, found 11"),
        ("Score: -1", "expected a score from 0 to 10 from the judge, found -1"),
        ({}, "expected a reply with choices[0].message.content, found {}"),
        ({"choices": []}, "expected a reply with choices[0].message.content"),
        ({"choices": [{"message": {"content": None}}]}, "expected a reply with choices[0].mess"),
        (Response("<html>"), "the reply is no JSON: '<html>'"),
    ],
)
def test_an_answer_is_a_score_in_the_range_or_a_reason(answer, expected):
    (found,) = ratings(Server(lambda _: answer), [rollout("a")])
    if isinstance(expected, float):
        assert found == expected
    else:
        assert isinstance(found, Unscored)
        assert found.reason.startswith(expected)


def test_a_judge_that_is_gone_is_a_transient_error_and_one_that_refuses_an_error_of_the_config():
    reward = JudgeReward(
        model_at(f"http://127.0.0.1:{closed_port()}"), TEMPLATE, low=0, high=1, concurrency=1
    )
    with pytest.raises(TransientError, match="did not answer after 1 retries"):
        reward([rollout("a")])
    with pytest.raises(ConfigError, match=r"answered 404; .*no such model"):
        ratings(Server(lambda _: Response("no such model", 404)), [rollout("a")])


def test_a_text_that_looks_like_a_field_or_a_format_is_only_text():
    values = {"response": "{prompt} {0.__class__} {low}", "prompt": "secret"}
    assert filled("<{response}> {unknown} {0.__class__}", values) == (
        "<{prompt} {0.__class__} {low}> {unknown} {0.__class__}"
    )


def test_the_label_is_a_column_of_the_prompt():
    server = Server(lambda _: "Score: 1")
    rollouts = [rollout("a", gold=7), rollout("a"), rollout("a", gold=None)]
    found = ratings(server, rollouts, "{response} {label}", label_column="gold")
    missing = Unscored("the prompt's row has no value in column 'gold'")
    assert found == [1.0, missing, missing]
    assert server.questions == ["a 7"]


def test_a_conversation_is_shown_with_its_roles():
    messages = ({"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"})
    asked = Rollout(Prompt("1", messages, "", ()), (), (), "hi", True, 0)
    server = Server(lambda _: "Score: 1")
    ratings(server, [asked], "{prompt}|{response}")
    assert server.questions == ["system: be kind\n\nuser: hello|hi"]


# ------------------------------------------- the cache


def test_the_same_question_is_asked_once(tmp_path):
    server = Server(lambda _: "Score: 4")
    with serving(answering(server)) as url:
        for _ in range(2):
            reward = JudgeReward(
                model_at(url, cache=tmp_path), TEMPLATE, low=0, high=10, concurrency=1
            )
            assert reward([rollout("a"), rollout("a"), rollout("b")]) == [4.0] * 3
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("options", "template"),
    [
        ({"model": "judge-2"}, TEMPLATE),
        ({"temperature": 0.5}, TEMPLATE),
        ({"max_reply_tokens": 65}, TEMPLATE),
        ({}, TEMPLATE + "!"),
    ],
)
def test_another_model_template_or_sampling_is_another_question(tmp_path, options, template):
    server = Server(lambda _: "Score: 4")
    with serving(answering(server)) as url:
        for settings, asked in (({}, TEMPLATE), (options, template)):
            model = model_at(url, cache=tmp_path, **settings)
            JudgeReward(model, asked, low=0, high=10, concurrency=1)([rollout("a")])
    assert len(server.requests) == 2


def test_an_answer_that_was_not_understood_is_not_kept(tmp_path):
    answers = ["hm", "Score: 5"]
    server = Server(lambda _: answers.pop(0))
    with serving(answering(server)) as url:
        reward = JudgeReward(model_at(url, cache=tmp_path), TEMPLATE, low=0, high=10, concurrency=1)
        assert isinstance(reward([rollout("a")])[0], Unscored)
        assert reward([rollout("a")]) == [5.0]
        assert reward([rollout("a")]) == [5.0]
    assert answers == []


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"answer": 1}', '{"answer": "Score: 99"}'])
def test_a_damaged_file_of_the_cache_is_asked_again(tmp_path, damage):
    server = Server(lambda _: "Score: 4")
    with serving(answering(server)) as url:
        reward = JudgeReward(model_at(url, cache=tmp_path), TEMPLATE, low=0, high=10, concurrency=1)
        reward([rollout("a")])
        (file,) = tmp_path.glob("*/*.json")
        file.write_text(damage)
        assert reward([rollout("a")]) == [4.0]
        assert json.loads(file.read_text()) == {"answer": "Score: 4"}
    assert len(server.requests) == 2


# ------------------------------------------- pairs


def verdicts(answer, pairs, **options):
    server = Server(answer)
    with serving(answering(server)) as url:
        judge = PairwiseJudge(model_at(url), CHOICE, concurrency=2, **options)
        found = judge.compare([rollout(a) for a, _ in pairs], [rollout(b) for _, b in pairs])
    return found, server


def longer(question):
    a, b = re.search(r"A <(.*)> B <(.*)>", question).groups()
    return f"Verdict: {'A' if len(a) > len(b) else 'B' if len(b) > len(a) else 'tie'}"


def test_both_orders_are_asked_and_the_better_response_wins_in_both():
    found, server = verdicts(longer, [("long", "a"), ("a", "long"), ("abc", "xyz")])
    assert found == [1.0, 0.0, 0.5]
    assert len(server.requests) == 6
    assert "<two tea> A <long> B <a>" in server.questions
    assert "<two tea> A <a> B <long>" in server.questions


@pytest.mark.parametrize("answer", ["Verdict: A", "verdict: b"])
def test_a_judge_that_prefers_a_place_makes_ties(answer):
    found, _ = verdicts(lambda _: answer, [("long", "a")])
    assert found == [0.5]


def test_a_judge_that_decides_in_one_order_only_makes_a_tie():
    found, _ = verdicts(
        lambda q: "Verdict: A" if "A <long>" in q else "Verdict: tie", [("long", "a")]
    )
    assert found == [0.5]


def test_equal_texts_are_a_tie_without_a_question():
    found, server = verdicts(longer, [("same", "same")])
    assert (found, server.requests) == ([0.5], [])


@pytest.mark.parametrize("bad", ["A", "Verdict: C", "Verdict: A\nVerdict: B", ""])
def test_one_answer_without_a_verdict_leaves_the_pair_unscored(bad):
    found, _ = verdicts(lambda q: bad if "A <a>" in q else "Verdict: A", [("long", "a")])
    assert isinstance(found[0], Unscored)
    assert found[0].reason.startswith("expected one line 'Verdict: …' from the judge, found")


def test_a_pair_without_its_label_is_unscored():
    found, server = verdicts(longer, [("long", "a")], label_column="gold")
    assert found == [Unscored("the prompt's row has no value in column 'gold'")]
    assert server.requests == []
