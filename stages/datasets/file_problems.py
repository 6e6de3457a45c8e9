"""Why a data file cannot be read, in words; and the lines of a JSON file that can.

Used after a library has refused the file: its own message often names neither row nor cause.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, cast

CUT_SHORT = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)
OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
PARQUET_MARK = b"PAR1"


def problem_of(path: Path, loader: str) -> str | None:
    """Return the cause, with the row where there is one, and what to do; None if it is not known.

    Args:
        path: a file.
        loader: format as which it was read: json, csv, parquet or arrow.
    """
    if path.stat().st_size == 0:
        return "it is empty; fill or remove it"
    if loader == "parquet":
        return _parquet_problem(path)
    if loader == "arrow":
        return None
    try:
        return _text_problem(path) or (_json_problem(path) if loader == "json" else None)
    except (*CUT_SHORT, OSError) as error:
        return f"it is cut short or damaged ({error}); copy it again"


def good_lines(path: Path) -> tuple[list[tuple[int, Mapping[str, object]]], list[str]]:
    """Read JSON lines one by one.

    Returns:
        (row number, row) of each good line; a reason for each bad one. Blank lines are neither.
    """
    good: list[tuple[int, Mapping[str, object]]] = []
    bad: list[str] = []
    for number, line in _lines(path):
        found = _object_in(line)
        if isinstance(found, str):
            bad.append(f"{path.name}, row {number} is not a JSON object: {found}")
        else:
            good.append((number, found))
    return good, bad


def require_objects(path: Path) -> None:
    """Refuse JSON that makes pyarrow 25 crash the whole process: `null` in place of a row.

    Raises:
        ValueError: for such a row, or an array with something else than objects.
    """
    if problem := _json_problem(path) if is_json_array(path) else _null_line(path):
        raise ValueError(problem)


def _null_line(path: Path) -> str | None:
    lines = _lines(path)
    number, first = next(lines, (0, b""))
    try:
        json.loads(first.decode("utf-8-sig"))
    except RecursionError:
        return f"row {number} is nested too deeply"
    except ValueError:
        return None  # not JSON lines, e.g. one object on several lines
    nulls = (i for i, line in chain([(number, first)], lines) if line.strip() == b"null")
    return next((f"row {i} is null, expected an object" for i in nulls), None)


def is_json_array(path: Path) -> bool:
    """Tell whether the file is one JSON array, and not JSON lines."""
    with _opened(path) as file:
        return file.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def _opened(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", OPENERS.get(path.suffix, open)(path, "rb"))


def opened_text(path: Path) -> IO[str]:
    """Open a file of UTF-8 text, compressed or not; line breaks stay as they are."""
    return io.TextIOWrapper(_opened(path), encoding="utf-8-sig", newline="")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, numbered from 1."""
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line


def _object_in(line: bytes) -> Mapping[str, object] | str:
    try:
        found = json.loads(line.decode("utf-8-sig"), object_pairs_hook=_fields)
        json.dumps(found, ensure_ascii=False).encode()  # refuses half a surrogate pair
    except (ValueError, RecursionError) as error:
        return str(error)
    return found if isinstance(found, dict) else f"found {found!r:.60}"


def _fields(pairs: Sequence[tuple[str, object]]) -> Mapping[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field '{twice}' occurs twice")
    return fields


def _parquet_problem(path: Path) -> str | None:
    with path.open("rb") as file:
        if file.read(4) != PARQUET_MARK:
            return "it does not begin with PAR1, so it is of another format; give it its right name"
        file.seek(-4, 2)
        if file.read(4) != PARQUET_MARK:
            return "it does not end with PAR1, so it is cut short; copy it again"
    return None


def _text_problem(path: Path) -> str | None:
    is_blank = True
    for number, line in _lines(path):
        is_blank = False
        if b"\x00" in line or line.startswith((b"\xff\xfe", b"\xfe\xff")):
            return (
                f"row {number} is not UTF-8 text but probably UTF-16; "
                "convert it, e.g. with `iconv -f utf-16 -t utf-8`"
            )
        try:
            line.decode()
        except UnicodeDecodeError as error:
            return (
                f"row {number} is not UTF-8 text (byte {line[error.start]:#x} at column "
                f"{error.start + 1}); convert it, e.g. with `iconv -f latin1 -t utf-8`"
            )
    return "it has only blank lines; fill or remove it" if is_blank else None


def _json_problem(path: Path) -> str | None:
    if is_json_array(path):
        with _opened(path) as file:
            try:
                items = json.loads(file.read().decode("utf-8-sig"))
            except (ValueError, RecursionError) as error:
                return f"it begins like a JSON array and is none: {error}; mend it"
        if all(isinstance(item, str) for item in items):
            return None  # texts
        wrong = ((i, item) for i, item in enumerate(items, 1) if not isinstance(item, dict))
        said = (f"row {i} is not a JSON object: found {item!r:.60}; remove it" for i, item in wrong)
        return next(said, None)
    for number, line in _lines(path):
        if isinstance(found := _object_in(line), str):
            return (
                f"row {number} is not a JSON object: {found}; "
                "mend it, or set skip_bad_rows to drop such rows"
            )
    return None
