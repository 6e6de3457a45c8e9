"""What the columns of a file are good for: the kinds of rows that they fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from stages.configs.column_format import names_in
from stages.configs.data_config import FileDataConfig
from stages.configs.stage_record import RowsName
from stages.datasets import FIRST_STEP, PLACEHOLDER, kinds
from stages.datasets.kinds import RowKind
from stages.datasets.table_rows import layout_of
from stages.datasets.trees import FLAT
from training_core.errors import DataError

if TYPE_CHECKING:
    from stages.datasets.tables import Table

KINDS: Mapping[RowsName, RowKind[Any]] = {
    "prompts": kinds.PROMPTS,
    "texts": kinds.TEXTS,
    "demonstrations": kinds.DEMONSTRATIONS,
    "preferences": kinds.PREFERENCES,
    "unpaired_responses": kinds.unpaired_responses(None),
    "solutions": kinds.solutions(PLACEHOLDER, FIRST_STEP),
}
"""Kind of rows -> how they are read with the default options of a stage."""

ANSWERS = ("answer", "final_answer", "ground_truth", "solution", "target")
"""Names of columns with the correct answer to a prompt."""

LONGEST_ANSWER = 60
"""A longer answer, in characters, is a response to imitate; a verifier compares short ones."""

LOOKED_AT = 200
"""Rows whose answers are looked at."""


@dataclass(frozen=True)
class Recognised:
    """The columns of a file, and what fits them.

    Attributes:
        rows: number of rows.
        columns: all columns.
        used: kind of rows -> the columns that it would use; only kinds that fit.
        refused: kind of rows -> why the columns do not fit it.
        answers: column with the correct answers to the prompts, if there is one.
        are_short: whether a rule can compare these answers.
        are_numbers: whether each of them has a digit.
    """

    rows: int
    columns: tuple[str, ...]
    used: Mapping[RowsName, frozenset[str]]
    refused: Mapping[RowsName, str]
    answers: str | None = None
    are_short: bool = False
    are_numbers: bool = False

    def unused(self, kind: RowsName, *others: str) -> list[str]:
        """Return the columns that neither this kind nor one of the `others` uses."""
        return [c for c in self.columns if c not in self.used[kind] and c not in others]


def recognise_columns(data: FileDataConfig) -> Recognised:
    """Find the kinds of rows that a file's columns fit; of several files the first one counts.

    Raises:
        DataError: if a file does not exist or cannot be read, or has no rows.
    """
    from stages.datasets.tables import tables  # noqa: PLC0415 - `KINDS` needs no `datasets`

    found = tables(data)
    table = found[0]
    has_messages = set(FLAT) <= set(table.columns) and not data.columns
    grown = tables(data, has_trees=True)[0] if has_messages else table
    used: dict[RowsName, frozenset[str]] = {}
    refused: dict[RowsName, str] = {}
    for name, kind in KINDS.items():
        try:
            layout = layout_of(kind, grown if kind.has_role("tree") else table, data.columns)
        except DataError as error:
            refused[name] = str(error)
        else:
            columns = layout.used.values()
            names = {part for column in columns for part in names_in(column)}
            used[name] = frozenset((*FLAT, "rank") if has_messages and "tree" in names else names)
    prompt = used.get("prompts", frozenset())
    answers = next((c for c in ANSWERS if c in table.columns and c not in prompt), None)
    rows = sum(len(each.numbers) for each in found)
    return Recognised(rows, table.columns, used, refused, answers, *_about(table, answers))


def _about(table: Table, answers: str | None) -> tuple[bool, bool]:
    """Return whether all answers are short, and whether all have a digit."""
    if answers is None:
        return False, False
    texts = [str(row[answers]) for row in _first(table.rows) if row.get(answers) is not None]
    are_short = all(len(text) <= LONGEST_ANSWER for text in texts)
    return are_short, all(any(map(str.isdigit, text)) for text in texts)


def _first(rows: Iterable[Mapping[str, object]]) -> Iterable[Mapping[str, object]]:
    return islice(rows, LOOKED_AT)
