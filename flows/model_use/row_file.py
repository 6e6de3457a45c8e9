"""Files of JSON lines that a command fills row by row, and fills up after an interruption.

The settings with which the rows were made are in a file beside it, `<name>.settings.json`, so that
every line of the file itself is a row.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from stages.files import read_jsonl, write_json
from training_core.errors import ConfigError, IntegrityError
from training_core.strict_json import read_object


class RowFile:
    """A file that already has its first `done` rows.

    Args:
        path: the file.
        stream: open for appending.
        done: number of rows.
    """

    def __init__(self, path: Path, stream: BinaryIO, done: int) -> None:
        self.path, self.done = path, done
        self._stream = stream

    def fill(
        self,
        total: int,
        make: Callable[[range], Sequence[Mapping[str, Any]]],
        *,
        batch_rows: int,
    ) -> None:
        """Append the rows that are missing.

        Rows are always made in the same batches, because the other rows of a batch change the
        rounding of a model. So if an interruption left a part of a batch, all of it is made again
        and only the missing part is written.

        Args:
            total: number of rows when the file is complete.
            make: numbers of rows, from 0 -> these rows.
            batch_rows: rows in a batch.
        """
        for start in range(self.done // batch_rows * batch_rows, total, batch_rows):
            rows = make(range(start, min(start + batch_rows, total)))
            self._append(rows[self.done - start :])

    def _append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        self._stream.write(text.encode())
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self.done += len(rows)


@contextmanager
def row_file(
    path: Path, settings: Mapping[str, object], keys: Sequence[Mapping[str, object]]
) -> Iterator[RowFile]:
    """Open a file of rows: a new one, or one that the same command has begun.

    A torn last line is removed.

    Args:
        path: the file.
        settings: everything that changes the rows; JSON values.
        keys: of each row, in order: fields by which it is recognised.

    Raises:
        ConfigError: if the file was made with other settings or by something else, or another
            process writes it.
        IntegrityError: if its rows are not the first ones of `keys`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"another process writes {path}; wait for it, or give another file"
            ) from error
        if path.stat().st_size:
            _require_same(path, settings)
        else:
            write_json(settings_path(path), settings, indent=2)
        rows = read_jsonl(path)
        _require_rows(path, rows, keys)
        stream.truncate(_size_of(path, len(rows)))
        yield RowFile(path, stream, len(rows))


def settings_path(path: Path) -> Path:
    """Return where the settings of a file of rows are."""
    return path.with_name(f"{path.name}.settings.json")


def _require_same(path: Path, settings: Mapping[str, object]) -> None:
    record = settings_path(path)
    if not record.is_file():
        raise ConfigError(
            f"{path} exists, and {record.name}, which would tell how it was made, does not; "
            "give another file"
        )
    found = read_object(record, remedy="restore it, or delete both files")
    mine = json.loads(json.dumps(settings))
    different = [
        f"{name} was {found.get(name)!r:.80}, now {mine.get(name)!r:.80}"
        for name in sorted(found.keys() | mine.keys())
        if found.get(name) != mine.get(name)
    ]
    if different:
        raise ConfigError(
            f"{path} was made with other settings: {'; '.join(different)}; "
            "give another file, or delete it"
        )


def _require_rows(
    path: Path, rows: Sequence[Mapping[str, Any]], keys: Sequence[Mapping[str, object]]
) -> None:
    if len(rows) > len(keys):
        raise IntegrityError(
            f"{path}: expected at most {len(keys)} rows, found {len(rows)}; delete the file"
        )
    for number, (row, key) in enumerate(zip(rows, keys, strict=False), 1):
        found = {name: row.get(name) for name in key}
        if found != key:
            raise IntegrityError(
                f"{path}, line {number}: expected the row of {dict(key)}, found {found}: the file "
                "was changed; delete it"
            )


def _size_of(path: Path, lines: int) -> int:
    with path.open("rb") as file:
        return sum(len(file.readline()) for _ in range(lines))
