"""Several rewards as one: the values of all parts are kept, and a failed part is never 0.0."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import pytest

from training_core.errors import DataError
from training_core.rewards.combined import CombinedReward, weighted_sum
from training_core.rewards.python_function import PythonFunction
from training_core.rewards.reward import (
    RewardResult,
    Scored,
    Unscored,
    component_means,
    score,
)
from training_core.types import Prompt, Rollout, ScoredRollout


def rollout(text=""):
    prompt = Prompt("7", ({"role": "user", "content": "two tea"},), "", (1, 2))
    return Rollout(prompt, (5, 2), (-1.0, -1.0), text, is_finished=True, policy_version=0)


def always(*results):
    return lambda rollouts: list(results)[: len(rollouts)]


def words(rollouts):
    return [float(len(r.text.split())) for r in rollouts]


def test_the_sum_is_weighted_and_has_the_value_of_each_part():
    parts = {"right": always(1.0, 0.0), "words": words}
    reward = CombinedReward(parts, weighted_sum({"right": 2.0, "words": -0.5}))
    found = reward([rollout("a b c"), rollout("a")])
    # 2 * 1 - 0.5 * 3 = 0.5; 2 * 0 - 0.5 * 1 = -0.5
    assert found == [
        Scored(0.5, {"right": 1.0, "words": 3.0}),
        Scored(-0.5, {"right": 0.0, "words": 1.0}),
    ]


def test_the_components_stay_with_the_rollout_and_their_means_are_metrics():
    reward = CombinedReward(
        {"right": always(1.0, 0.0), "words": words}, weighted_sum({"right": 1.0, "words": 0.0})
    )
    scored = score(reward, [rollout("a b c"), rollout("a")], unscored_limit=0)
    assert [(s.reward, dict(s.components)) for s in scored] == [
        (1.0, {"right": 1.0, "words": 3.0}),
        (0.0, {"right": 0.0, "words": 1.0}),
    ]
    assert component_means(scored) == {"component_right": 0.5, "component_words": 2.0}
    assert component_means([ScoredRollout(rollout(), 1.0)]) == {}


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (Unscored("timeout"), "judge: timeout"),
        (math.nan, "judge: the reward is nan"),
        (-math.inf, "judge: the reward is -inf"),
        (Scored(1.0, {"length": math.nan}), "judge: length is nan"),
    ],
)
def test_a_part_without_a_value_leaves_the_whole_unscored_with_its_reason(result, reason):
    reward = CombinedReward({"words": words, "judge": always(result)}, weighted_sum({"words": 1}))
    assert reward([rollout("a")]) == [Unscored(reason)]


def test_a_value_of_zero_is_a_value():
    reward = CombinedReward({"a": always(0.0), "b": always(-0.0)}, weighted_sum({"a": 1, "b": 1}))
    assert reward([rollout()]) == [Scored(0.0, {"a": 0.0, "b": 0.0})]


def test_components_of_a_part_are_kept_under_its_label():
    parts = {"service": always(Scored(0.25, {"fluency": 0.5}))}
    assert CombinedReward(parts, weighted_sum({"service": 2}))([rollout()]) == [
        Scored(0.5, {"service_fluency": 0.5, "service": 0.25})
    ]


class Meeting:
    """A reward that waits until all members of a meeting are asked at once."""

    def __init__(self, all_here: threading.Barrier, *results: RewardResult) -> None:
        self._all_here, self._results = all_here, results

    def __call__(self, rollouts: Sequence[Rollout]) -> list[RewardResult]:
        self._all_here.wait()
        return list(self._results)


@pytest.mark.parametrize("waiting", [("a", "b"), ("a",), ("b",)])
def test_parts_that_wait_are_asked_while_the_others_are_computed(waiting):
    all_here = threading.Barrier(2, timeout=60)  # asked one after the other, they would never meet
    parts = {"a": Meeting(all_here, 1.0, Unscored("late")), "b": Meeting(all_here, 2.0, 5.0)}
    reward = CombinedReward(parts, weighted_sum({"a": 10, "b": 1}), waiting=waiting)
    found = reward([rollout(), rollout()])
    assert found == [Scored(12.0, {"a": 1.0, "b": 2.0}), Unscored("a: late")]
    assert list(found[0].components) == ["a", "b"]


def test_parts_that_compute_stay_in_the_thread_of_the_caller():
    threads = []

    def part(rollouts):
        threads.append(threading.current_thread())
        return [1.0]

    reward = CombinedReward(
        {"a": part, "b": part, "c": part}, weighted_sum(dict.fromkeys("abc", 1)), waiting=("b",)
    )
    assert reward([rollout()]) == [Scored(3.0, {"a": 1.0, "b": 1.0, "c": 1.0})]
    here = threading.current_thread()
    assert sorted(thread is here for thread in threads) == [False, True, True]


def test_the_first_of_several_errors_is_raised_whichever_part_ends_first():
    later_failed = threading.Event()

    def first(rollouts):
        assert later_failed.wait(60)
        raise DataError("first")

    def second(rollouts):
        later_failed.set()
        raise DataError("second")

    reward = CombinedReward(
        {"a": first, "b": second}, weighted_sum({"a": 1, "b": 1}), waiting=("a", "b")
    )
    with pytest.raises(DataError, match="first"):
        reward([rollout()])


def test_a_part_that_forgets_a_rollout_is_an_error():
    reward = CombinedReward({"a": words, "b": always(1.0)}, weighted_sum({"a": 1, "b": 1}))
    with pytest.raises(ValueError, match="shorter"):
        reward([rollout(), rollout()])


def combined(function, *parts, **arguments):
    labelled = {f"part_{i}": part for i, part in enumerate(parts)}
    return CombinedReward(labelled, PythonFunction(function, arguments, takes=("a", "b")))


def test_a_function_combines_the_values_and_sees_the_rollout():
    def gated(rollout, values, *, bonus):
        return values["part_0"] * values["part_1"] + bonus * rollout.is_finished

    reward = combined(gated, always(0.5), words, bonus=10)
    assert reward([rollout("a b c")]) == [Scored(11.5, {"part_0": 0.5, "part_1": 3.0})]


def test_a_function_that_raises_or_gives_a_reason_leaves_the_rollout_unscored():
    def strict(rollout, values):
        return values["part_0"] / values["part_1"]

    (found,) = combined(strict, always(1.0), always(0.0))([rollout()])
    assert isinstance(found, Unscored)
    assert found.reason.startswith("ZeroDivisionError: float division by zero (test_combined")
    reward = combined(lambda *_: Unscored("undecided"), always(1.0))
    assert reward([rollout()]) == [Unscored("undecided")]
    with pytest.raises(DataError, match="1x the reward is nan"):
        score(combined(lambda *_: math.nan, always(1.0)), [rollout()], unscored_limit=0)
