"""What a stage's process leaves behind about its own end; light, so that a flow can read it."""

from __future__ import annotations

import json
from pathlib import Path

from stages.files import write_json


def write_error(attempt_dir: Path, code: int, error: Exception) -> None:
    """Write `error.json`."""
    record = {"code": code, "kind": type(error).__name__, "message": str(error)}
    write_json(attempt_dir / "error.json", record)


def read_error(attempt_dir: Path) -> dict[str, str] | None:
    """Return what `error.json` of an attempt says, or None."""
    path = attempt_dir / "error.json"
    return json.loads(path.read_text()) if path.exists() else None
