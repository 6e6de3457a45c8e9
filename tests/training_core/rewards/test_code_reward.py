"""Programs of responses are run against the tests of their prompts."""

from __future__ import annotations

import json

import pytest

from training_core.rewards.code_reward import CodeReward, read_tests
from training_core.rewards.reward import Unscored
from training_core.rewards.sandbox import Limits, Sandbox, SandboxError
from training_core.types import Prompt, Rollout

LIMITS = Limits(seconds=60, memory_mib=512, file_mib=1, processes=64)
ADD = "def add(a, b):\n    return a + b"
ASSERTS = ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]
DOUBLE = "print(2 * int(input()))"
PAIRS = [{"input": "2\n", "output": "4\n"}, {"input": "0", "output": "0"}]


def rollout(text, **columns):
    prompt = Prompt("7", ({"role": "user", "content": "?"},), "", (1, 2), columns)
    return Rollout(prompt, (5, 2), (-1.0, -1.0), text, is_finished=True, policy_version=0)


def block(code):
    return f"Here it is:\n```python\n{code}\n```\nDone."


def reward(credit="all", limits=LIMITS):
    sandbox = Sandbox(limits, needs_isolation=False)
    return CodeReward(sandbox, column="tests", credit=credit, concurrency=2)


def judged(*codes, tests, **options):
    return reward(**options)([rollout(block(code), tests=tests) for code in codes])


def test_a_function_must_pass_all_assertions():
    wrong = ADD.replace("+", "-")
    assert judged(ADD, wrong, tests=ASSERTS) == [1.0, 0.0]
    assert judged(ADD, wrong, tests=ASSERTS, credit="share") == [1.0, 0.5]  # 0 - 0 is 0


def test_a_program_must_print_the_output_of_each_input():
    assert judged(DOUBLE, "print(4)", tests=PAIRS) == [1.0, 0.0]
    assert judged(DOUBLE, "print(4)", tests=PAIRS, credit="share") == [1.0, 0.5]


@pytest.mark.parametrize(
    "code",
    [
        "1 / 0",
        "def add(a, b:",
        "while True: pass",
        "x = 'a' * 10**10",
        "import os\nos._exit(0)",
        "raise SystemExit(0)",
        "if True:",
        '"""',
        "print('1\\n' * 10**7)",
    ],
    ids=[
        "raises",
        "syntax",
        "endless",
        "memory",
        "exit",
        "leave",
        "open block",
        "open text",
        "long",
    ],
)
def test_a_program_that_fails_in_any_way_is_wrong(code):
    limits = Limits(seconds=1, memory_mib=512, file_mib=1, processes=64)
    assert judged(code, tests=ASSERTS, limits=limits) == [0.0]


def test_the_last_block_counts_and_a_response_without_one_is_wrong():
    texts = [block("1 / 0") + "\n" + block(ADD), ADD, "", "```python\n" + ADD]
    found = reward()([rollout(text, tests=ASSERTS) for text in texts])
    assert found == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        (None, "expected lines of Python, {input, output} or {inputs, outputs}, found None"),
        ([], "expected tests, found []"),
        ("", "expected lines of Python"),
        ([3], "expected lines of Python, {input, output} or {inputs, outputs}, found 3"),
        ({"inputs": ["1"], "outputs": []}, "expected lines of Python"),
        ({"input": 1, "output": "1"}, "expected an input or output as text, found 1"),
    ],
)
def test_tests_that_cannot_be_read_are_a_reason_and_no_zero(tests, reason):
    (found,) = judged(ADD, tests=tests)
    assert isinstance(found, Unscored)
    assert found.reason.startswith(f"column 'tests': {reason}")


def test_a_missing_column_is_a_reason():
    assert reward()([rollout(block(ADD))]) == [Unscored("the prompt's row has no column 'tests'")]


def test_the_formats_of_public_datasets_are_read():
    assert [test.code for test in read_tests(ASSERTS)] == ASSERTS
    assert [test.code for test in read_tests("assert True")] == ["assert True"]
    pairs = [(test.stdin, test.expected) for test in read_tests(PAIRS)]
    assert pairs == [("2\n", "4\n"), ("0", "0")]
    apps = {"inputs": ["2\n", ["0", "1"]], "outputs": ["4\n", ["0"]]}
    assert [(t.stdin, t.expected) for t in read_tests(apps)] == [("2\n", "4\n"), ("0\n1", "0")]
    assert read_tests(json.dumps(apps)) == read_tests(apps)


def test_a_sandbox_that_cannot_start_is_a_reason_and_no_zero():
    class Broken(Sandbox):
        def run(self, program, stdin=""):
            raise SandboxError("no more processes")

    sandbox = Broken(LIMITS, needs_isolation=False)
    broken = CodeReward(sandbox, column="tests", credit="all", concurrency=1)
    found = broken([rollout(block(ADD), tests=ASSERTS)])
    assert found == [Unscored("the sandbox could not start: no more processes")]
