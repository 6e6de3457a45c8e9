"""What a stage's process leaves behind about its own end; light, so that a flow can read it."""

from __future__ import annotations

import json

from stages.attempt import Attempt
from stages.files import write_json


def write_error(attempt: Attempt, code: int, error: Exception) -> None:
    """Write `error.json`."""
    record = {"code": code, "kind": type(error).__name__, "message": str(error)}
    write_json(attempt.error, record)


def read_error(attempt: Attempt) -> dict[str, str] | None:
    """Return what `error.json` of an attempt says, or None."""
    return json.loads(attempt.error.read_text()) if attempt.error.exists() else None
