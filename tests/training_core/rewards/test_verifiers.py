"""Rewards that follow from rules: answers, patterns and lengths."""

from __future__ import annotations

import pytest

from training_core.rewards.reward import Unscored
from training_core.rewards.verifiers import (
    AnswerReward,
    LengthReward,
    PatternReward,
    normalised,
)
from training_core.types import Prompt, Rollout


def rollout(text="", num_tokens=2, **columns):
    prompt = Prompt("7", ({"role": "user", "content": "two tea"},), "", (1, 2), columns)
    ids = tuple(range(num_tokens))
    return Rollout(prompt, ids, (-1.0,) * num_tokens, text, is_finished=True, policy_version=0)


SLOW = r"(a|aa)+b", "a" * 60  # every way to cut 60 letters into ones and twos is tried


# ------------------------------------------- patterns


def test_the_whole_response_must_match():
    reward = PatternReward(r"<think>.*</think>\s*<answer>[^<]+</answer>", timeout_seconds=5)
    good = "<think>two\nlines</think>\n<answer>7</answer>"
    assert reward([rollout(good), rollout(good + "!"), rollout("")]) == [1.0, 0.0, 0.0]


def test_a_pattern_that_takes_too_long_is_a_reason_and_no_zero():
    pattern, text = SLOW
    reward = PatternReward(pattern, timeout_seconds=0.01)
    found = reward([rollout(text), rollout("ab")])
    assert found == [Unscored("the pattern needs more than 0.01 seconds"), 1.0]


# ------------------------------------------- lengths


def test_the_penalty_falls_from_zero_to_minus_one():
    reward = LengthReward(free_tokens=10, max_tokens=14)
    lengths = [0, 10, 11, 12, 14, 20]
    # (10 - 11) / 4 = -0.25
    assert reward([rollout(num_tokens=n) for n in lengths]) == [0, 0, -0.25, -0.5, -1, -1]


# ------------------------------------------- answers


def answer(*texts, pattern=None, normalise=True, timeout_seconds=5.0, **columns):
    reward = AnswerReward(
        column="gold", pattern=pattern, normalise=normalise, timeout_seconds=timeout_seconds
    )
    return reward([rollout(text, **columns) for text in texts])


def test_an_answer_is_compared_without_its_dress():
    texts = ["Paris", ' **"paris."** ', "\u201cPARIS\u201d", "London", ""]
    assert answer(*texts, gold="Paris") == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert answer("paris", "Paris", gold="Paris", normalise=False) == [0.0, 1.0]


def test_normalising_keeps_what_is_part_of_the_answer():
    assert normalised("  New \n York. ") == "new york"
    assert normalised("-3.5") == "-3.5"
    assert normalised("１２") == "12"  # noqa: RUF001 - wide digits


def test_the_column_may_hold_a_number_or_several_answers():
    assert answer("7", gold=7) == [1.0]
    assert answer("0", gold=0) == [1.0]
    assert answer("b", "c", gold=["a", "b"]) == [1.0, 0.0]


def test_a_whole_number_is_the_answer_with_and_without_a_decimal_point():
    assert answer("6", "6.0", "7", gold=6.0) == [1.0, 1.0, 0.0]


def test_the_pattern_finds_the_last_answer():
    found = answer("Answer: 3. No, Answer: 7", "7", pattern=r"Answer: (\d+)", gold="7")
    assert found == [1.0, 0.0]  # a response without the pattern is wrong
    assert answer("x 7", pattern=r"\d", gold="7") == [1.0]


@pytest.mark.parametrize("gold", [None, [], {"a": 1}, [None]])
def test_a_column_without_an_answer_is_a_reason(gold):
    (found,) = answer("7", gold=gold)
    assert found == Unscored(f"column 'gold': expected an answer, found {gold!r}")


def test_a_missing_column_and_a_slow_pattern_are_reasons():
    assert answer("7") == [Unscored("the prompt's row has no column 'gold'")]
    pattern, text = SLOW
    (found,) = answer(text, pattern=pattern, gold="7", timeout_seconds=0.01)
    assert found == Unscored("the pattern needs more than 0.01 seconds")
