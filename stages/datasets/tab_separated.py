"""Files whose values tabs separate (.tsv): with quotes as in CSV, or with quotes as plain text.

Some programs write a text with quotation marks in quotes and double the marks inside; others write
every text as it is, so that a quotation mark at its beginning has no partner.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.datasets.file_problems import opened_text

LONGEST_FIELD = 2**31 - 1


def tab_options(path: Path) -> Mapping[str, Any]:
    """Return the options with which pandas reads a file: its separator and what quotes mean."""
    return {"sep": "\t", "quoting": csv.QUOTE_MINIMAL if _is_quoted(path) else csv.QUOTE_NONE}


def _is_quoted(path: Path) -> bool:
    """Whether each quote that opens a field is closed at its end, and all rows are equally long."""
    limit = csv.field_size_limit(LONGEST_FIELD)
    try:
        with opened_text(path) as file:
            return len({len(row) for row in csv.reader(file, "excel-tab", strict=True) if row}) <= 1
    except csv.Error:
        return False
    finally:
        csv.field_size_limit(limit)
