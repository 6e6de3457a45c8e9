"""Small files: written in one step, read while they grow, and found by a path or a glob."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from training_core.errors import IntegrityError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a draft to write to; it replaces `path` if the body ends without an error.

    A reader sees the old or the new file, never a part of one. Several processes may do this at
    once: the file of the last one stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid4().hex}.draft")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, is_private: bool = False) -> None:
    """Write a small text file in one step; see `replacing`. Only its owner reads a private one."""
    with replacing(path) as draft:
        if is_private:
            make_private(draft)
        draft.write_text(text)


def make_private(path: Path) -> None:
    """Make sure that a file exists and that only its owner may read and write it."""
    path.touch(mode=0o600)
    path.chmod(0o600)


def write_json(path: Path, value: Mapping[str, object], *, indent: int | None = None) -> None:
    """Write a small JSON file in one step; see `replacing`."""
    write_text(path, json.dumps(value, indent=indent))


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read_jsonl(path: Path) -> list[Mapping[str, Any]]:
    """Read a JSON-lines file that may still grow.

    A last line that is not complete is left out: a process was killed while it wrote it, or has
    not written the rest yet.

    Raises:
        IntegrityError: if another line is not a JSON object; the message has file and line.
    """
    if not path.exists():
        return []
    *lines, unfinished = path.read_bytes().split(b"\n")
    rows: list[Mapping[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(_object_in(line))
        except (ValueError, RecursionError) as error:
            if number == len(lines) and not unfinished:
                break
            raise IntegrityError(
                f"{path}, line {number}: expected a JSON object, found {error}; remove this line"
            ) from error
    return rows


def _object_in(line: bytes) -> dict[str, Any]:
    value = json.loads(line)  # curves may have NaN, which strict JSON does not know
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.80}")
    return value


def files_at(path: str) -> list[Path]:
    """Return the files or directories that match a path or glob, sorted; empty if none match."""
    named = Path(path)
    try:
        if named.exists():
            return [named]
    except OSError:  # e.g. no permission; `unreadable` states it
        return [named]
    if not any(sign in path for sign in "*?["):
        return []
    return sorted(Path(named.anchor).glob(str(named.relative_to(named.anchor))))


def unreadable(path: Path) -> str | None:
    """Return why a file or folder cannot be read; None if it can, or if it does not exist.

    Opens nothing: a FIFO or a device would wait for ever.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}; check its name, folders and permissions"
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return f"{path}: expected a file or folder, found a FIFO, device or socket; give a file"
    needed = os.R_OK | (os.X_OK if stat.S_ISDIR(mode) else 0)
    if not os.access(path, needed, effective_ids=True):
        return f"{path}: this user has no permission to read it; change its permissions"
    return None
