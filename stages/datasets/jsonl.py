"""Small files that stages write and read themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.datasets.row import Row
from stages.settings.data import FileData


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read_lexicon(path: Path) -> dict[str, float]:
    """Read a lexicon: JSON lines (also .gz) with `token` and `mean`.

    Raises:
        DataError: for a file or row that is not one, naming it.
    """
    from stages.datasets.tables import tables  # imports `datasets`

    found = {}
    for table in tables(FileData(path=str(path))):
        for number, values in zip(table.numbers, table.rows, strict=True):
            row = Row(values, f"{table.origin}, row {number}", {})
            found[row.scalar("token", str).lower()] = row.scalar("mean", float)
    return found
