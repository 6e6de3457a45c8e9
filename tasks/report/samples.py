"""Rewards and lengths of responses, for histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from stages.files import read_jsonl

MAX_ROWS = 20_000
"""A histogram looks the same with more."""

PAIR = ("chosen", "rejected")


@dataclass(frozen=True)
class Samples:
    """Responses of one kind.

    Attributes:
        name: what they are, e.g. `chosen`.
        rewards: of each; empty if they have none.
        words: length of each, in words.
    """

    name: str
    rewards: tuple[float, ...]
    words: tuple[int, ...]


def samples_of(name: str, rows: Sequence[Mapping[str, Any]], kind: str = "") -> Samples | None:
    """Return the responses of some rows; None if they have none.

    Args:
        name: what they are.
        rows: with `response` and `reward`, or with `chosen` and `chosen_reward`, and so on.
        kind: `chosen` or `rejected` for the second form.
    """
    text, reward = (kind, f"{kind}_reward") if kind else ("response", "reward")
    found = [row for row in islice(rows, MAX_ROWS) if isinstance(row.get(text), str)]
    if not found:
        return None
    rewards = tuple(float(row[reward]) for row in found if row.get(reward) is not None)
    return Samples(name, rewards, tuple(len(row[text].split()) for row in found))


def read_rows(data_jsonl: Path) -> tuple[Samples, ...]:
    """Read the responses in a dataset that a stage has made."""
    rows = read_jsonl(data_jsonl)
    kept = samples_of("kept responses", rows)
    pairs = [samples_of(kind, rows, kind) for kind in PAIR]
    return tuple(found for found in (kept, *pairs) if found is not None)
