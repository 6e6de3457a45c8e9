"""Configuration of rewards that verify a response by rules.

Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

import regex
from pydantic import AfterValidator, model_validator

from stages.configs.block import Block, operational, semantic

PATTERN_SECONDS = "Limit of each response; one that needs longer has no reward."


def _require_pattern(pattern: str) -> str:
    try:
        regex.compile(pattern)
    except regex.error as error:
        raise ValueError(f"expected a regular expression: {error}") from error
    return pattern


Pattern = Annotated[str, AfterValidator(_require_pattern)]


class AnswerRewardConfig(Block):
    """1 if the response gives the answer in a column of its prompt, else 0."""

    name: Literal["answer"] = semantic("answer", "Name of the reward.")
    column: str = semantic(..., "Column of the prompts' dataset: the answer, or a list of answers.")
    pattern: Pattern | None = semantic(
        None,
        "Regular expression that finds the answer: its last match, or that match's first group. "
        "None takes the whole response.",
    )
    normalise: bool = semantic(
        True, "Compare without case, repeated spaces, quotes and a final full stop."
    )
    timeout_seconds: float = semantic(1.0, PATTERN_SECONDS, gt=0)


class PatternRewardConfig(Block):
    """1 if the whole response matches a regular expression, else 0."""

    name: Literal["pattern"] = semantic("pattern", "Name of the reward.")
    pattern: Pattern = semantic(..., "Regular expression of the package `regex`.")
    timeout_seconds: float = semantic(1.0, PATTERN_SECONDS, gt=0)


class LengthRewardConfig(Block):
    """Penalty of long responses, from 0 to -1 (soft overlong punishment of DAPO)."""

    name: Literal["length"] = semantic("length", "Name of the reward.")
    free_tokens: int = semantic(..., "Longest response without a penalty, in tokens.", ge=0)
    max_tokens: int = semantic(..., "Shortest response with the whole penalty, in tokens.", gt=0)

    @model_validator(mode="after")
    def _has_a_slope(self) -> Self:
        if self.free_tokens >= self.max_tokens:
            raise ValueError(
                f"expected free_tokens < max_tokens, found {self.free_tokens} and {self.max_tokens}"
            )
        return self


class MathsRewardConfig(Block):
    """1 if the response's answer equals that in a column, as mathematics, else 0."""

    name: Literal["maths"] = semantic("maths", "Name of the reward.")
    column: str = semantic(..., "Column of the prompts' dataset: the answer, or a list of answers.")
    timeout_seconds: float = semantic(
        5.0, "Limit of each comparison; one that needs longer has no reward.", gt=0
    )
    concurrency: int = operational(4, "Processes that compare.", gt=0, le=1024)


class CodeRewardConfig(Block):
    """1 if the program in the response passes the tests in a column, else 0."""

    name: Literal["code"] = semantic("code", "Name of the reward.")
    column: str = semantic(..., "Column of the prompts' dataset with the tests.")
    credit: Literal["all", "share"] = semantic(
        "all", "`all`: all tests must pass. `share`: the share of the tests that pass."
    )
    timeout_seconds: float = semantic(10.0, "Time limit of each run of a program.", gt=0, le=3600)
    memory_mib: int = semantic(1024, "Memory limit of each process, in MiB.", ge=64)
    file_mib: int = semantic(16, "Limit of each file and of the output, in MiB.", gt=0)
    processes: int = semantic(64, "Limit of the processes and threads of its user.", gt=0)
    concurrency: int = operational(4, "Programs that run at once.", gt=0, le=1024)
    needs_isolation: bool = operational(
        False,
        "Stop if this machine cannot give programs namespaces, e.g. to switch the network off.",
    )
