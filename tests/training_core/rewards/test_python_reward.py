"""A person's own function as a reward: a number, a reason, or an error that says what to do."""

from __future__ import annotations

import re

import pytest

from training_core.errors import ConfigError, DataError
from training_core.rewards.python_function import PythonReward, load_function
from training_core.rewards.reward import Unscored, score
from training_core.types import Prompt, Rollout

PROMPT = Prompt("7", ({"role": "user", "content": "two tea"},), "", (1, 2))


def rollout(text="", prompt=PROMPT):
    return Rollout(prompt, (5, 2), (-1.0, -1.0), text, is_finished=True, policy_version=0)


def file(tmp_path, text, name="mine.py"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_function_of_a_file_scores_each_rollout_with_its_arguments(tmp_path):
    path = file(
        tmp_path, "def words(rollout, *, bonus=0):\n    return len(rollout.text.split()) + bonus"
    )
    reward = PythonReward(load_function(path, "words"), {"bonus": 0.5})
    assert reward([rollout("a b c"), rollout("a")]) == [3.5, 1.5]
    assert all(type(r) is float for r in reward([rollout("a")]))


def test_a_function_of_a_module_in_a_package(tmp_path, monkeypatch):
    (tmp_path / "own_rewards_a").mkdir()
    file(tmp_path, "", "own_rewards_a/__init__.py")
    file(tmp_path, "from .rules import LIMIT\ndef f(r): return LIMIT", "own_rewards_a/texts.py")
    file(tmp_path, "LIMIT = 3", "own_rewards_a/rules.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert PythonReward(load_function("own_rewards_a.texts", "f"), {})([rollout()]) == [3.0]


def test_a_changed_file_is_run_anew_even_within_a_second(tmp_path):
    path = file(tmp_path, "def f(r): return 1")
    assert load_function(path, "f")(rollout()) == 1
    path.write_text("def f(r): return 2")  # as long as before, at the same second
    assert load_function(path, "f")(rollout()) == 2
    assert not (tmp_path / "__pycache__").exists()


def test_a_file_may_define_dataclasses(tmp_path):
    text = """
from __future__ import annotations
from dataclasses import dataclass
@dataclass
class Rule:
    points: float
def f(rollout): return Rule(2.5).points
"""
    assert PythonReward(load_function(file(tmp_path, text), "f"), {})([rollout()]) == [2.5]


def test_the_fields_that_a_person_needs_reach_the_function():
    seen = []
    asked = Prompt("7", PROMPT.messages, "", (1, 2))
    PythonReward(lambda r: seen.append((r.text, r.is_finished, r.prompt.messages)) or 0, {})(
        [rollout("two tea .", asked)]
    )
    assert seen == [("two tea .", True, PROMPT.messages)]


def test_true_and_false_are_one_and_zero():
    assert PythonReward(lambda r: "tea" in r.text, {})([rollout("tea"), rollout("")]) == [1.0, 0.0]


def test_an_exception_is_the_reason_with_the_line_of_the_function_and_never_zero(tmp_path):
    text = "import json\n\ndef f(rollout):\n    return json.loads(rollout.text)['points']\n"
    reward = PythonReward(load_function(file(tmp_path, text), "f"), {})
    good, bad = reward([rollout('{"points": 4}'), rollout('{"score": 4}')])
    assert good == 4.0
    assert bad == Unscored("KeyError: 'points' (mine.py, line 4)")


def test_a_number_too_large_for_a_float_is_a_reason():
    (found,) = PythonReward(lambda _: 10**400, {})([rollout()])
    assert isinstance(found, Unscored)
    assert found.reason.startswith("OverflowError: ")


def test_too_many_exceptions_stop_the_stage_and_the_first_one_is_shown():
    def f(r):
        if r.text == "odd":
            raise RuntimeError("{braces} of the first")
        if r.text:
            raise ValueError("the usual")
        return 1

    texts = ["", "odd", "x", "x", "x"]
    with pytest.raises(DataError, match=r"4 of 5 .*: 3x ValueError: the usual") as caught:
        score(PythonReward(f, {}), [rollout(t) for t in texts], unscored_limit=0.5)
    assert "The first is of prompt 7: RuntimeError: {braces} of the first (" in str(caught.value)
    kept = score(PythonReward(f, {}), [rollout(t) for t in texts], unscored_limit=0.8)
    assert [s.reward for s in kept] == [1.0]


def test_a_reason_of_the_function_itself_is_kept():
    assert PythonReward(lambda _: Unscored("no answer"), {})([rollout()]) == [Unscored("no answer")]


@pytest.mark.parametrize("wrong", [None, "1.0", [1.0], 1j])
def test_a_result_that_is_no_number_stops_and_names_prompt_and_value(wrong):
    message = re.escape(f"prompt 7: the reward f returned {wrong!r} ({type(wrong).__name__})")

    def f(_):
        return wrong

    with pytest.raises(ConfigError, match=message):
        PythonReward(f, {})([rollout()])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def g(r): return 1", "has no function 'f'; correct reward.path"),
        ("f = 3", "'f' in the reward's code .*mine.py is 3, not a function"),
        ("import nowhere_at_all", "cannot be imported: ModuleNotFoundError: No module named"),
        ("def f(r) return 1", "cannot be imported: SyntaxError"),
        ("1 / 0", "cannot be imported: ZeroDivisionError"),
    ],
)
def test_code_without_the_function_is_refused(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        load_function(file(tmp_path, text), "f")


def test_code_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"gone\.py cannot be imported: FileNotFoundError"):
        load_function(tmp_path / "gone.py", "f")
    with pytest.raises(ConfigError, match="nowhere_at_all cannot be imported: ModuleNotFound"):
        load_function("nowhere_at_all", "f")


@pytest.mark.parametrize("arguments", [{"bonos": 1}, {}])
def test_arguments_that_the_function_does_not_take_are_refused_before_anything_is_scored(arguments):
    def f(rollout, *, bonus):
        return bonus

    with pytest.raises(ConfigError, match=r"the reward f\(rollout, \*, bonus\) cannot be called"):
        PythonReward(f, arguments)
