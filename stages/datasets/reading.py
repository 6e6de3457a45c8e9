"""Read a source as rows of one kind, and collect the reasons for bad rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stages.configs.data_config import (
    CafeDataConfig,
    DataConfig,
    FileDataConfig,
    HubDataConfig,
    MixedDataConfig,
)
from stages.datasets.kinds import RowKind
from stages.datasets.mixing import mixture_order
from stages.datasets.row import Row, is_json_like
from stages.datasets.shapes import by_role, recognise
from training_core.data import cafe
from training_core.errors import DataError

if TYPE_CHECKING:
    from stages.datasets.tables import Table

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
    """

    rows: list[T]
    bad: list[str]
    are_bad_rows_dropped: bool


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
        raise DataError(f"every row is bad; the first: {reading.bad[0]}")
    return reading.rows


def read(
    kind: RowKind[T],
    data: CafeDataConfig | FileDataConfig | HubDataConfig | Path,
    first_rows: int | None = None,
) -> Reading[T]:
    """Read a source and separate good from bad rows.

    Args:
        kind: the expected kind of its rows.
        data: the source; a directory is the artifact of a stage.
        first_rows: read only so many rows; None reads all.

    Raises:
        DataError: if the source cannot be read, or its columns do not fit.
    """
    good: list[T] = []
    bad: list[str] = []
    for row in _rows(kind, data, first_rows):
        try:
            good += kind.read(row)
        except DataError as error:
            bad.append(str(error))
    is_lenient = isinstance(data, FileDataConfig | HubDataConfig) and data.skip_bad_rows
    return Reading(good, bad, is_lenient)


def _rows(
    kind: RowKind[object],
    data: CafeDataConfig | FileDataConfig | HubDataConfig | Path,
    first_rows: int | None,
) -> Iterator[Row]:
    if isinstance(data, CafeDataConfig):
        yield from _cafe_rows(kind, data, first_rows)
        return
    if isinstance(data, Path):
        data = FileDataConfig(path=str(data / "data.jsonl"))
    from stages.datasets.tables import tables  # noqa: PLC0415 - imports `datasets`: the café needs none

    for table in tables(data, first_rows):
        yield from _table_rows(kind, table, data.columns)


def _table_rows(kind: RowKind[object], table: Table, mapped: Mapping[str, str]) -> Iterator[Row]:
    columns = by_role(mapped, table.columns, table.origin)
    shapes = next(
        (tier for tier in kind.tiers if any(set(s.needs) <= set(columns) for s in tier)),
        [shape for tier in kind.tiers for shape in tier],
    )
    shape = recognise(shapes, tuple(columns), tuple(mapped), table.origin, kind.name)
    extras = [
        role for role in kind.extras if role in columns and (role != "system" or role in mapped)
    ]
    roles = (*sorted(shape.used(tuple(columns))), *extras)
    renamed = {role: columns[role] for role in roles}
    others = [role for role in columns if role not in roles] if kind.keeps_columns else []
    left_out: set[str] = set()
    for number, values in zip(table.numbers, table.rows, strict=True):
        by_name = {role: values.get(column) for role, column in renamed.items()}
        filled = [column for column, value in values.items() if value is not None]
        kept = {role: values.get(columns[role]) for role in others}
        left_out |= (bad := {role for role, value in kept.items() if not is_json_like(value)})
        kept = {role: value for role, value in kept.items() if role not in bad}
        yield Row(by_name, f"{table.origin}, row {number}", renamed, filled, kept)
    if left_out:
        log.warning(
            "%s: %s hold more than texts, numbers, lists and mappings; rewards do not get these",
            table.origin,
            ", ".join(sorted(left_out)),
        )


def _cafe_rows(
    kind: RowKind[object], data: CafeDataConfig, first_rows: int | None
) -> Iterator[Row]:
    if kind.name not in CAFE_KINDS:
        raise DataError(f"the café has no {kind.name}; it has {', '.join(CAFE_KINDS)}")
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
