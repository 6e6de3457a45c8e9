"""Hold out a part of a dataset, prompt by prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from training_core.errors import DataError

T = TypeVar("T")


def split_by_prompt(
    rows: Sequence[T], fraction: float, prompt_of: Callable[[T], object]
) -> tuple[list[T], list[T]]:
    """Split rows into training rows and held-out rows that have no prompt in common.

    Prompts are held out in the order of their hashes, which is random but depends on nothing else:
    any seed, and any order of the rows, gives the same split. A prompt with so many rows that the
    share would be exceeded is passed over.

    Args:
        rows: all rows.
        fraction: share of the rows that is held out, in [0, 1).
        prompt_of: row -> its prompt; rows with equal results stay together.

    Returns:
        Training rows and held-out rows, each in the original order. Unless the share is less than
        half a row, at least one prompt is held out.

    Raises:
        DataError: if nothing would be left to train on.
    """
    wanted = round(fraction * len(rows))
    if not wanted:
        return list(rows), []
    groups: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        digest = hashlib.sha256(repr(prompt_of(row)).encode()).hexdigest()
        groups.setdefault(digest, []).append(index)
    if len(groups) == 1 or wanted == len(rows):
        raise DataError(
            f"heldout_fraction={fraction} holds out whole prompts, and of {len(rows)} rows with "
            f"{len(groups)} different prompts it leaves none to train on; lower it, or set "
            "eval_data and heldout_fraction: 0"
        )
    held: set[int] = set()
    for _, members in sorted(groups.items()):
        if len(held) + len(members) <= wanted:
            held.update(members)
    if not held:
        held.update(min(sorted(groups.items()), key=lambda group: len(group[1]))[1])
    train = [row for index, row in enumerate(rows) if index not in held]
    return train, [rows[index] for index in sorted(held)]
