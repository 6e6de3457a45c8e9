"""The process that compares answers in mathematics; see `training_core.rewards.maths`.

Reads one JSON object {answers, response} per line, and writes {right} or {reason}. It is a process
of its own because sympy can need any time and memory, and because math-verify limits its time with
a signal, which only a main thread gets.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Sequence

from math_verify import parse, verify

MEMORY_BYTES = 4 * 2**30
NO_LIMIT = 0
"""The other process ends this one after its own limit."""


def reply_to(answers: Sequence[str], response: str) -> dict[str, object]:
    """Compare a response with all right answers."""
    right = [parse(_marked(answer), parsing_timeout=NO_LIMIT) for answer in answers]
    if not all(right):
        return {"reason": f"expected an answer that can be parsed, found {list(answers)!r:.80}"}
    given = parse(response, parsing_timeout=NO_LIMIT)
    return {
        "right": any(
            verify(one, given, timeout_seconds=NO_LIMIT, raise_on_error=True) for one in right
        )
    }


def _marked(answer: str) -> str:
    r"""Mark an answer as mathematics, e.g. \frac{1}{2}, as responses do."""
    return answer if "$" in answer or "\\boxed" in answer else f"${answer}$"


def main() -> None:
    """Answer until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = reply_to(request["answers"], request["response"])
        except Exception as error:  # noqa: BLE001 - sympy may raise anything
            reply = {"reason": f"{type(error).__name__}: {error}"[:300]}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
