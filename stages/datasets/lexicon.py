"""Lexicons: a number for each word."""

from __future__ import annotations

from pathlib import Path

from stages.configs.data_config import FileDataConfig
from stages.datasets.row import Row


def read_lexicon(path: Path) -> dict[str, float]:
    """Read a lexicon: JSON lines (also .gz) with `token` and `mean`.

    Raises:
        DataError: for an invalid file or row, with its name.
    """
    from stages.datasets.tables import tables  # noqa: PLC0415 - imports `datasets`

    found = {}
    for table in tables(FileDataConfig(path=str(path))):
        for number, values in zip(table.numbers, table.rows, strict=True):
            row = Row(values, f"{table.origin}, row {number}", {})
            found[row.scalar("token", str).lower()] = row.scalar("mean", float)
    return found
