"""The file `error.json` of a stage's process; imports no torch, because flows read it."""

from __future__ import annotations

import json

from stages.attempt import Attempt
from stages.files import write_json


def write_error(attempt: Attempt, code: int, error: Exception) -> None:
    """Write `error.json`."""
    record = {"code": code, "kind": type(error).__name__, "message": str(error)}
    write_json(attempt.error, record)


def read_error(attempt: Attempt) -> dict[str, str] | None:
    """Return the content of an attempt's `error.json`, or None if there is none."""
    return json.loads(attempt.error.read_text()) if attempt.error.exists() else None
