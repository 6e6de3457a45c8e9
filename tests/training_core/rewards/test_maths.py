"""Answers in mathematics are compared by value, in a process that may be slow or end."""

from __future__ import annotations

import gzip
import json

import pytest

from training_core.errors import ConfigError
from training_core.rewards.maths import MathsReward
from training_core.rewards.reward import Unscored
from training_core.types import Prompt, Rollout


def rollout(text, **columns):
    prompt = Prompt("7", ({"role": "user", "content": "?"},), "", (1, 2), columns)
    return Rollout(prompt, (5, 2), (-1.0, -1.0), text, is_finished=True, policy_version=0)


def compare(*pairs, timeout_seconds=60.0, concurrency=1):
    reward = MathsReward(column="gold", timeout_seconds=timeout_seconds, concurrency=concurrency)
    return reward([rollout(text, gold=gold) for text, gold in pairs])


RIGHT = [
    ("The answer is 42.", "42"),
    ("so $x = 0.5$", "\\frac{1}{2}"),
    ("\\boxed{\\frac12}", "1/2"),
    ("$1+x^2$", "x^2 + 1"),
    ("#### 1,234", 1234),
    ("\\boxed{2}", ["1", "2"]),
    ("\\boxed{0}", 0),
]
WRONG = [
    ("The answer is 41.", "42"),
    ("\\boxed{41} but 42", "42"),
    ("no number", "42"),
    ("", "0"),
    ("__import__('os').abort()", "42"),
]


def test_equal_values_are_right_and_others_wrong():
    found = compare(*RIGHT, *WRONG, concurrency=2)
    assert found == [1.0] * len(RIGHT) + [0.0] * len(WRONG)


@pytest.mark.parametrize("gold", [None, [], {"a": 1}])
def test_a_column_without_an_answer_is_a_reason(gold):
    assert compare(("7", gold)) == [Unscored(f"column 'gold': expected an answer, found {gold!r}")]


def test_an_answer_that_is_no_mathematics_is_a_reason():
    (found,) = compare(("7", " "))
    assert found == Unscored("expected an answer that can be parsed, found [' ']")


def test_a_missing_column_is_a_reason_and_needs_no_process():
    reward = MathsReward(column="gold", timeout_seconds=60, concurrency=1)
    assert reward([rollout("7")]) == [Unscored("the prompt's row has no column 'gold'")]
    assert reward([]) == []


def test_a_comparison_without_an_end_is_a_reason_and_the_next_one_is_made():
    # The process starts with the first comparison, whose limit is longer.
    endless = "9**9**9**9**9", "$9^{9^{9^{9}}}$"
    found = compare(("1", "1"), (endless[0], endless[1]), ("2", "2"), timeout_seconds=1.0)
    assert [found[0], found[2]] == [1.0, 1.0]
    assert isinstance(found[1], Unscored)


def test_solutions_of_gsm8k_earn_one(shared_data):
    with gzip.open(shared_data / "verifiable/gsm8k.test.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file][:100]
    found = compare(*((row["solution"], row["answer"]) for row in rows), concurrency=2)
    assert found == [1.0] * 100


def test_a_missing_package_is_named_before_anything_is_scored(monkeypatch):
    monkeypatch.setattr("training_core.rewards.maths.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="needs the package math-verify, which is not installed"):
        MathsReward(column="gold", timeout_seconds=1, concurrency=1)
