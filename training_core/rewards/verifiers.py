"""Verifiable rewards: answers, patterns and lengths."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import chain

import regex

from training_core.number_text import as_text
from training_core.rewards.reward import Unscored
from training_core.types import Rollout

QUOTES = "\"'`\u2018\u2019\u201c\u201d*_ "
"""Removed around an answer: straight and curly quotes, and Markdown's emphasis."""


class PatternReward:
    """1 if the whole response matches a regular expression, else 0.

    Args:
        pattern: expression of the package `regex`; `.` matches line breaks, too.
        timeout_seconds: limit of each match; a rollout that needs longer is unscored.
    """

    def __init__(self, pattern: str, *, timeout_seconds: float) -> None:
        self._pattern = regex.compile(pattern, regex.DOTALL)
        self._timeout_seconds = timeout_seconds

    def __call__(self, rollouts: Sequence[Rollout]) -> list[float | Unscored]:
        """Score `rollouts`; see `Reward`."""
        return [self._score(rollout.text) for rollout in rollouts]

    def _score(self, text: str) -> float | Unscored:
        try:
            return float(bool(self._pattern.fullmatch(text, timeout=self._timeout_seconds)))
        except TimeoutError:
            return Unscored(f"the pattern needs more than {self._timeout_seconds:g} seconds")


class LengthReward:
    """Penalty of long responses, in [-1, 0].

        n <= free       0
        free < n < max  (free - n) / (max - free)
        n >= max        -1

    Args:
        free_tokens: longest response without a penalty, its end token included.
        max_tokens: shortest response with the whole penalty.

    Source:
        Yu et al. 2025 (DAPO), equation 13, https://arxiv.org/abs/2503.14476
    """

    def __init__(self, *, free_tokens: int, max_tokens: int) -> None:
        self._free, self._max = free_tokens, max_tokens

    def __call__(self, rollouts: Sequence[Rollout]) -> list[float | Unscored]:
        """Score `rollouts`; see `Reward`."""
        return [self._penalty(len(rollout.response_ids)) for rollout in rollouts]

    def _penalty(self, num_tokens: int) -> float:
        share = (num_tokens - self._free) / (self._max - self._free)
        return -min(max(share, 0.0), 1.0)


class AnswerReward:
    """1 if the response gives the answer in a column of its prompt, else 0.

    Args:
        column: the column; a text or number, or a list of all right ones.
        pattern: finds the answer in the response: its last match, or that of its first group. None
            takes the whole response. A response without a match is wrong.
        normalise: compare without case, spaces around words, quotes and the final full stop.
        timeout_seconds: limit of each search; a rollout that needs longer is unscored.
    """

    def __init__(
        self, *, column: str, pattern: str | None, normalise: bool, timeout_seconds: float
    ) -> None:
        self._column = column
        self._pattern = regex.compile(pattern) if pattern is not None else None
        self._normalise = normalise
        self._timeout_seconds = timeout_seconds

    def __call__(self, rollouts: Sequence[Rollout]) -> list[float | Unscored]:
        """Score `rollouts`; see `Reward`."""
        return [self._score(rollout) for rollout in rollouts]

    def _score(self, rollout: Rollout) -> float | Unscored:
        right = answers_in(rollout, self._column)
        if isinstance(right, Unscored):
            return right
        try:
            given = self._found_in(rollout.text)
        except TimeoutError:
            return Unscored(f"the pattern needs more than {self._timeout_seconds:g} seconds")
        if given is None:
            return 0.0
        return float(self._plain(given) in map(self._plain, right))

    def _found_in(self, text: str) -> str | None:
        if self._pattern is None:
            return text
        last = None
        for match in self._pattern.finditer(text, timeout=self._timeout_seconds):
            last = match.group(1 if self._pattern.groups else 0)
        return last

    def _plain(self, answer: str) -> str:
        return normalised(answer) if self._normalise else answer


def answers_in(rollout: Rollout, column: str) -> list[str] | Unscored:
    """Return the right answers in a column of the prompt, or why there are none."""
    if column not in rollout.prompt.columns:
        return Unscored(f"the prompt's row has no column '{column}'")
    value = rollout.prompt.columns[column]
    answers = value if isinstance(value, list | tuple) else [value]
    if not answers or not all(isinstance(one, str | int | float) for one in answers):
        return Unscored(f"column '{column}': expected an answer, found {value!r:.80}")
    texts = ((str(as_text(one)), str(one)) for one in answers)  # 6.0 is 6 and 6.0
    return list(dict.fromkeys(chain.from_iterable(texts)))


def normalised(answer: str) -> str:
    """Return an answer without case, repeated spaces, quotes around it and a final full stop."""
    words = " ".join(unicodedata.normalize("NFKC", answer).casefold().split())
    return words.strip(QUOTES).removesuffix(".").strip(QUOTES)
