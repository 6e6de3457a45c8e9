"""The same sequences laid out in every way that a batch may have.

A layout takes members (all first sides, then all second ones, as pairs are numbered) and gives one
`Batch`; `moved` says where a column of a sequence stands in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from training_core.data.batching import collate
from training_core.data.layout import collate_packed, collate_shared
from training_core.types import Batch, Example

PAD = 0


@dataclass(frozen=True)
class Laid:
    """A batch, and where column c of sequence s stands: (row, column)."""

    batch: Batch
    moved: Callable[[int, int], tuple[int, int]]


def padded_right(members: Sequence[Example], *, extra: int = 0, pad_id: int = PAD) -> Laid:
    batch = collate(members, pad_id)
    wide = Batch(
        torch.nn.functional.pad(batch.input_ids, (0, extra), value=pad_id),
        torch.nn.functional.pad(batch.attention_mask, (0, extra)),
        torch.nn.functional.pad(batch.loss_mask, (0, extra)),
    )
    return Laid(wide, lambda sequence, column: (sequence, column))


def padded_left(members: Sequence[Example]) -> Laid:
    batch = collate(members, PAD)
    width = batch.input_ids.shape[1]
    shifts = [width - len(example) for example in members]

    def rolled(table: torch.Tensor) -> torch.Tensor:
        return torch.stack([row.roll(s) for row, s in zip(table, shifts, strict=True)])

    left = Batch(rolled(batch.input_ids), rolled(batch.attention_mask), rolled(batch.loss_mask))
    return Laid(left, lambda sequence, column: (sequence, column + shifts[sequence]))


def packed(members: Sequence[Example], *, per_row: int = 2) -> Laid:
    packs = [members[i : i + per_row] for i in range(0, len(members), per_row)]

    def moved(sequence: int, column: int) -> tuple[int, int]:
        row, place = divmod(sequence, per_row)
        return row, column + sum(len(e) for e in packs[row][:place])

    return Laid(collate_packed(packs, PAD), moved)


def shared(members: Sequence[Example]) -> Laid:
    """Both sides of each pair in one row; only for pairs."""
    half = len(members) // 2
    groups = list(zip(members[:half], members[half:], strict=True))

    def moved(sequence: int, column: int) -> tuple[int, int]:
        raise NotImplementedError("nothing is looked up in a shared row")

    return Laid(collate_shared(groups, PAD), moved)


LAYOUTS: dict[str, Callable[[Sequence[Example]], Laid]] = {
    "with more padding": lambda members: padded_right(members, extra=3, pad_id=7),
    "padded on the left": padded_left,
    "packed in twos": packed,
    "packed in one row": lambda members: packed(members, per_row=len(members)),
}
