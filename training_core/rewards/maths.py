"""Rewards for mathematics: the response's answer is compared with the right one by math-verify."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue

from training_core.errors import ConfigError
from training_core.rewards.reward import Unscored
from training_core.rewards.verifiers import answers_in
from training_core.types import Rollout

WORKER = Path(__file__).with_name("maths_worker.py")
START_SECONDS = 60.0


class MathsReward:
    r"""1 if the response's answer equals that in a column, else 0; e.g. 1/2, 0.5 and \frac{1}{2}.

    The answer is the last expression in `\boxed{…}`, `$…$` or after "answer is"; else the last
    number. A response without one is wrong. A comparison that fails or takes too long leaves the
    rollout unscored.

    Args:
        column: column of the prompts' dataset; an answer, or a list of all right ones.
        timeout_seconds: limit of each comparison.
        concurrency: processes that compare.

    Raises:
        ConfigError: if math-verify is not installed.
    """

    def __init__(self, *, column: str, timeout_seconds: float, concurrency: int) -> None:
        if find_spec("math_verify") is None:
            raise ConfigError(
                "the reward `maths` needs the package math-verify, which is not installed; "
                "install the lock file again, e.g. with `make venv`"
            )
        self._column = column
        self._timeout_seconds = timeout_seconds
        self._concurrency = concurrency

    def __call__(self, rollouts: Sequence[Rollout]) -> list[float | Unscored]:
        """Score `rollouts`; see `Reward`."""
        free: SimpleQueue[_Comparer] = SimpleQueue()

        def score(rollout: Rollout) -> float | Unscored:
            answers = answers_in(rollout, self._column)
            if isinstance(answers, Unscored):
                return answers
            comparer = free.get()
            try:
                return comparer.compare(answers, rollout.text)
            finally:
                free.put(comparer)

        count = min(self._concurrency, len(rollouts)) or 1
        with ExitStack() as stack, ThreadPoolExecutor(count) as pool:
            for _ in range(count):
                free.put(stack.enter_context(_comparer(self._timeout_seconds)))
            return list(pool.map(score, rollouts))


class _Comparer:
    """A process that compares answers; it is replaced if it takes too long or ends."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._process: subprocess.Popen[bytes] | None = None

    def compare(self, answers: Sequence[str], response: str) -> float | Unscored:
        """Compare a response with the right answers."""
        seconds = self._timeout_seconds
        if self._process is None:
            self._process, seconds = _start(), seconds + START_SECONDS
        reply = _ask(self._process, {"answers": answers, "response": response}, seconds)
        if reply is None:
            self.end()
            return Unscored(f"no comparison in {self._timeout_seconds:g} seconds")
        found = json.loads(reply)
        return float(found["right"]) if "right" in found else Unscored(found["reason"])

    def end(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@contextmanager
def _comparer(timeout_seconds: float) -> Iterator[_Comparer]:
    comparer = _Comparer(timeout_seconds)
    try:
        yield comparer
    finally:
        comparer.end()


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", str(WORKER)],  # -P: the files beside it are no packages
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    )


def _ask(process: subprocess.Popen[bytes], request: object, seconds: float) -> bytes | None:
    """Return the line that answers a request; None if there is none in time."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(request).encode() + b"\n")
    except BrokenPipeError:
        return None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return (process.stdout.readline() or None) if ready else None
