"""Rewards for code: the response's program is run against the tests of its prompt."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from training_core.rewards.reward import Unscored
from training_core.rewards.sandbox import Sandbox, SandboxError
from training_core.types import Rollout

BLOCK = re.compile(r"^```(?:python|py|python3)?[ \t]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class CodeTest:
    """One test: lines of Python, or an input with the output that is expected.

    Attributes:
        code: run after the program; "" for a test of input and output.
        stdin: the input.
        expected: the output; None for a test of code.
    """

    code: str = ""
    stdin: str = ""
    expected: str | None = None


class CodeReward:
    """Runs the last code block of each response against the tests in a column.

    The reward is 1 if all tests pass, else 0, or the share of the passed ones. A response without a
    code block, and a program that crashes or runs out of time, have failed. If the tests cannot be
    read or the sandbox cannot start, the rollout is unscored.

    Args:
        sandbox: runs the programs.
        column: column of the prompts' dataset with the tests.
        credit: `all`, or `share` for the share of the passed tests.
        concurrency: programs at once.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        column: str,
        credit: Literal["all", "share"],
        concurrency: int,
    ) -> None:
        self._sandbox = sandbox
        self._column = column
        self._credit = credit
        self._concurrency = concurrency

    def __call__(self, rollouts: Sequence[Rollout]) -> list[float | Unscored]:
        """Score `rollouts`; see `Reward`."""
        with ThreadPoolExecutor(self._concurrency) as pool:
            return list(pool.map(self._score, rollouts))

    def _score(self, rollout: Rollout) -> float | Unscored:
        if self._column not in rollout.prompt.columns:
            return Unscored(f"the prompt's row has no column '{self._column}'")
        try:
            tests = read_tests(rollout.prompt.columns[self._column])
        except ValueError as error:
            return Unscored(f"column '{self._column}': {error}")
        blocks = BLOCK.findall(rollout.text)
        if not blocks:
            return 0.0
        try:
            if self._credit == "all":
                return float(all(self._passes(blocks[-1], test) for test in _joined(tests)))
            return sum(self._passes(blocks[-1], test) for test in tests) / len(tests)
        except SandboxError as error:
            return Unscored(f"the sandbox could not start: {error}")

    def _passes(self, code: str, test: CodeTest) -> bool:
        if test.expected is not None:
            outcome = self._sandbox.run(code, test.stdin)
            printed = outcome.output.decode(errors="replace")
            return outcome.exit_code == 0 and _lines(printed) == _lines(test.expected)
        # A program that exits before the tests would look like one that passed them.
        proof = secrets.token_hex(16)
        end = f"__import__('os').write(1, b'\\n{proof}')"
        outcome = self._sandbox.run(f"{code}\n\n{test.code}\n\n{end}\n")
        return outcome.exit_code == 0 and outcome.output.endswith(proof.encode())


def read_tests(value: object) -> list[CodeTest]:
    """Return the tests that a column holds.

    It holds lines of Python, e.g. assertions, as a text or a list of texts; or {input, output}, a
    list of these, or {inputs, outputs} with two lists (APPS); or the JSON text of any of them.

    Raises:
        ValueError: if it holds something else, or no test.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = [value]
    found = list(_tests(value))
    if not found:
        raise ValueError(f"expected tests, found {value!r:.80}")
    return found


def _tests(value: object) -> Iterator[CodeTest]:
    match value:
        case str() if value.strip():
            yield CodeTest(code=value)
        case {"input": stdin, "output": expected}:
            yield CodeTest(stdin=_text(stdin), expected=_text(expected))
        case {"inputs": list(stdins), "outputs": list(outputs)} if len(stdins) == len(outputs):
            for stdin, expected in zip(stdins, outputs, strict=True):
                yield CodeTest(stdin=_text(stdin), expected=_text(expected))
        case list():
            for one in value:
                yield from _tests(one)
        case _:
            raise ValueError(
                "expected lines of Python, {input, output} or {inputs, outputs}, "
                f"found {value!r:.80}"
            )


def _text(value: object) -> str:
    """Return an input or output, which may be a list of lines."""
    match value:
        case str():
            return value
        case list() if all(isinstance(line, str) for line in value):
            return "\n".join(value)
    raise ValueError(f"expected an input or output as text, found {value!r:.80}")


def _joined(tests: Sequence[CodeTest]) -> list[CodeTest]:
    """Join the tests of code, so that they need one process."""
    code = [test.code for test in tests if test.expected is None]
    others = [test for test in tests if test.expected is not None]
    return [*([CodeTest(code="\n".join(code))] if code else []), *others]


def _lines(output: str) -> list[str]:
    """Return the lines of an output, without spaces at their ends and empty lines at its end."""
    return [line.rstrip() for line in output.rstrip().splitlines()]
