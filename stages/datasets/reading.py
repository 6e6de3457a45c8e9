"""Read a source as rows of one kind, and collect the reasons for bad rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from stages.configs.data_config import (
    CafeDataConfig,
    DataConfig,
    FileDataConfig,
    HubDataConfig,
    MixedDataConfig,
)
from stages.datasets.kinds import RowKind
from stages.datasets.mixing import mixture_order
from stages.datasets.row import Row
from stages.datasets.row_types import PromptedRow
from stages.datasets.table_rows import form_of, labels_not_used, layout_of, rows_of
from stages.datasets.turn_order import about_turns
from training_core.data import cafe
from training_core.errors import DataError

T = TypeVar("T")
log = logging.getLogger(__name__)

SHOWN_REASONS = 3
CAFE_KINDS: Mapping[str, tuple[cafe.CafeRows, Callable[[dict[str, Any]], Mapping[str, object]]]] = {
    "demonstrations": ("demonstrations", lambda row: row),
    "texts": (
        "demonstrations",
        lambda row: {"text": " ".join(m["content"] for m in row["messages"])},
    ),
    "preferences": ("pairs", lambda row: row),
    "ratings": ("pairs", lambda row: row),
    "prompts": ("prompts", lambda row: row),
}


@dataclass(frozen=True)
class Reading(Generic[T]):
    """The result of reading a source.

    Attributes:
        rows: the good rows.
        bad: the reason for each bad row.
        are_bad_rows_dropped: whether the source is configured to drop bad rows.
        notes: what is unusual about the source and stops nothing.
        forms: how each of its tables was read, in words; the café has none.
    """

    rows: list[T]
    bad: list[str]
    are_bad_rows_dropped: bool
    notes: list[str]
    forms: list[str]


def load(kind: RowKind[T], data: DataConfig | Path) -> list[T]:
    """Load all rows of a source.

    Raises:
        DataError: for the first bad row, unless the source drops bad rows; if no row is left.
    """
    if isinstance(data, MixedDataConfig):
        parts = [load(kind, part.data) for part in data.parts]
        order = mixture_order(
            [len(rows) for rows in parts],
            [part.weight for part in data.parts],
            seed=data.seed,
            exhaustion=data.exhaustion,
            size=data.size,
        )
        return [parts[part][row] for part, row in order]
    reading = read(kind, data)
    for note in reading.notes:
        log.warning("%s", note)
    if reading.bad and not reading.are_bad_rows_dropped:
        raise DataError(reading.bad[0])
    if reading.bad:
        log.warning(
            "%d of %d rows are bad and were dropped; the first: %s",
            len(reading.bad),
            len(reading.bad) + len(reading.rows),
            "; ".join(reading.bad[:SHOWN_REASONS]),
        )
    if not reading.rows:
        first = (
            f"every row is bad; the first: {reading.bad[0]}" if reading.bad else reading.notes[0]
        )
        raise DataError(f"there are no {kind.name}: {first}")
    return reading.rows


def stream(
    kind: RowKind[T],
    data: CafeDataConfig | FileDataConfig | HubDataConfig,
    first_rows: int | None = None,
) -> Iterator[T]:
    """Yield the good rows of a source one after another, in bounded memory; bad ones are left out.

    Raises:
        DataError: if the source cannot be read, or its columns do not fit.
    """
    found: Reading[T] = Reading([], [], True, [], [])
    for row in _rows(kind, data, first_rows, found):
        try:
            yield from kind.read(row)
        except DataError:  # the step that trains on it says why
            continue


def read(
    kind: RowKind[T],
    data: CafeDataConfig | FileDataConfig | HubDataConfig | Path,
    first_rows: int | None = None,
) -> Reading[T]:
    """Read a source and separate good from bad rows.

    Args:
        kind: the expected kind of its rows.
        data: the source; a directory is the artifact of a stage.
        first_rows: number of rows to read, from the first; None reads all.

    Raises:
        DataError: if the source cannot be read, or its columns do not fit.
    """
    is_lenient = isinstance(data, FileDataConfig | HubDataConfig) and data.skip_bad_rows
    found: Reading[T] = Reading([], [], is_lenient, [], [])
    without: list[str] = []
    for row in _rows(kind, data, first_rows, found):
        try:
            objects = kind.read(row)
        except DataError as error:
            found.bad.append(str(error))
            continue
        found.rows.extend(objects)
        without += [] if objects else [row.where]
    if without:
        found.notes.insert(
            0,
            f"{len(without)} rows have no {kind.name} (the first: {without[0]}): a tie, or no two "
            "answers with different ranks; they are left out",
        )
    found.notes.extend(about_turns([r for r in found.rows if isinstance(r, PromptedRow)]))
    return found


def _rows(
    kind: RowKind[T],
    data: CafeDataConfig | FileDataConfig | HubDataConfig | Path,
    first_rows: int | None,
    found: Reading[T],
) -> Iterator[Row]:
    if isinstance(data, CafeDataConfig):
        yield from _cafe_rows(kind, data, first_rows)
        return
    if isinstance(data, Path):
        data = FileDataConfig(path=str(data / "data.jsonl"))
    from stages.datasets.tables import tables  # noqa: PLC0415 - the café needs no `datasets`

    has_trees = kind.has_role("tree") and not data.columns
    for table in tables(data, first_rows, has_trees=has_trees):
        found.bad.extend(table.bad)
        if table.numbers:
            layout = layout_of(kind, table, data.columns)
            found.forms.append(form_of(table, layout))
            if kind.is_judged and "tree" not in layout.used:
                found.notes.extend(labels_not_used(table, layout))
            yield from rows_of(table, layout)


def _cafe_rows(
    kind: RowKind[object], data: CafeDataConfig, first_rows: int | None
) -> Iterator[Row]:
    if kind.name not in CAFE_KINDS:
        raise DataError(
            f"`name: cafe` has no rows of kind {kind.name}; it has {', '.join(CAFE_KINDS)}"
        )
    made, change = CAFE_KINDS[kind.name]
    rows = cafe.rows(
        made,
        split=data.split,
        size=data.size,
        seed=data.seed,
        flipped_fraction=data.flipped_fraction,
    )
    for number, values in enumerate(rows[:first_rows], 1):
        yield Row(change(values), f"cafe, row {number}", {})
