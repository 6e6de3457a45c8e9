"""The rows of a table, by the roles of its columns."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from stages.configs.column_format import is_format, names_in
from stages.datasets.joined_columns import value_at
from stages.datasets.kinds import RowKind
from stages.datasets.row import Row, is_json_like
from stages.datasets.shapes import by_role, recognise
from stages.datasets.trees import with_tree
from stages.datasets.turn_forms import form_of_turn
from stages.datasets.unused_labels import LOOKED_AT, unused_labels
from stages.datasets.verdicts import require_clear_numbers, with_sides

if TYPE_CHECKING:
    from stages.datasets.tables import Table

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TableLayout:
    """How the columns of a table are read.

    Attributes:
        used: role -> column or format, of the roles that a row is read from.
        kept: the same, of the columns that go along with a prompt.
    """

    used: Mapping[str, str]
    kept: Mapping[str, str] = field(default_factory=dict)


def layout_of(kind: RowKind[Any], table: Table, mapped: Mapping[str, str]) -> TableLayout:
    """Recognise how a table is read.

    Args:
        kind: the expected kind of its rows.
        table: with at least one row.
        mapped: role -> column or format, as configured.

    Raises:
        DataError: if a column is missing, or no shape or several ones fit; if `winner` has numbers
            that name no answer.
    """
    columns = by_role(mapped, table.columns, table.origin)
    if kind.has_role("first"):
        columns = with_sides(columns)
    if kind.has_role("tree"):
        columns = with_tree(columns, table.rows)
    shape = recognise(kind.tiers, tuple(columns), tuple(mapped), table.origin, kind.name)
    extras = [r for r in kind.extras if r in columns and (r != "system" or r in mapped)]
    roles = [role for role in (*shape.needs, *shape.may_have, *extras) if role in columns]
    used = {role: columns[role] for role in roles}
    others = {role: column for role, column in columns.items() if role not in used}
    layout = TableLayout(used, others if kind.keeps_columns else {})
    if "winner" in used:
        require_clear_numbers(islice(_rows(table, layout), LOOKED_AT))
    return layout


def rows_of(table: Table, layout: TableLayout) -> Iterator[Row]:
    """Yield the rows of a table; the log names kept columns that JSON cannot represent."""
    left_out: set[str] = set()
    for row in _rows(table, layout):
        bad = {role for role, value in row.others.items() if not is_json_like(value)}
        left_out |= bad
        kept = {role: value for role, value in row.others.items() if role not in bad}
        yield Row(row.values, row.where, row.columns, row.filled, kept)
    if left_out:
        log.warning(
            "%s: rewards do not receive %s: expected texts, numbers, lists or mappings",
            table.origin,
            ", ".join(sorted(left_out)),
        )


def _rows(table: Table, layout: TableLayout) -> Iterator[Row]:
    for number, values in zip(table.numbers, table.rows, strict=True):
        by_name = {role: value_at(values, column) for role, column in layout.used.items()}
        filled = [column for column, value in values.items() if value is not None]
        kept = {role: value_at(values, column) for role, column in layout.kept.items()}
        yield Row(by_name, f"{table.origin}, row {number}", layout.used, filled, kept)


def labels_not_used(table: Table, layout: TableLayout) -> Iterator[str]:
    """Yield a note for each column that looks like a verdict and is not used."""
    used = {name for column in layout.used.values() for name in names_in(column)}
    sides = [layout.used[role] for role in ("chosen", "rejected") if role in layout.used]
    unused = [column for column in table.columns if column not in used]
    for note in unused_labels(table.rows, unused, sides):
        yield f"{table.origin}: {note}"


def form_of(table: Table, layout: TableLayout) -> str:
    """Return how a table is read, in words: its roles, their columns, and the form of turns."""
    values = next(iter(table.rows), {})
    return " + ".join(_in_words(role, column, values) for role, column in layout.used.items())


def _in_words(role: str, column: str, values: Mapping[str, object]) -> str:
    if is_format(column):
        return f'{role} = "{column}"'
    named = role if role == column else f"{role} = {column}"
    value = values.get(column)
    turn = value[0] if isinstance(value, list | tuple) and value else None
    form = form_of_turn(turn)
    return named if form is None else f"{named} {{{', '.join(form)}}}"
