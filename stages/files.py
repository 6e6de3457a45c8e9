"""Small files: written in one step, read while they grow, and found by a path or a glob.

Imports only the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4


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


def write_text(path: Path, text: str) -> None:
    """Write a small text file in one step; see `replacing`."""
    with replacing(path) as draft:
        draft.write_text(text)


def write_json(path: Path, value: Mapping[str, object], *, indent: int | None = None) -> None:
    """Write a small JSON file in one step; see `replacing`."""
    write_text(path, json.dumps(value, indent=indent))


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read_jsonl(path: Path) -> list[Mapping[str, Any]]:
    """Read a JSON-lines file that may still grow: a last line without a newline is left out."""
    if not path.exists():
        return []
    return [
        json.loads(line)
        for line in path.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    ]


def files_at(path: str) -> list[Path]:
    """Return the files or directories that match a path or glob, sorted; empty if none match."""
    named = Path(path)
    if named.exists():
        return [named]
    if not any(sign in path for sign in "*?["):
        return []
    return sorted(Path(named.anchor).glob(str(named.relative_to(named.anchor))))
