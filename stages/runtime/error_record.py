"""The file `error.json` of a stage's process; imports no torch, because flows read it."""

from __future__ import annotations

from typing import Any

from stages.attempt import Attempt
from stages.files import write_json
from stages.safe_text import redacted
from training_core.errors import IntegrityError
from training_core.strict_json import read_object


def write_error(attempt: Attempt, code: int, error: Exception) -> None:
    """Write `error.json`."""
    record = {"code": code, "kind": type(error).__name__, "message": redacted(str(error))}
    write_json(attempt.error, record)


def read_error(attempt: Attempt) -> dict[str, Any] | None:
    """Return the content of an attempt's `error.json`, or None if there is none.

    Raises:
        IntegrityError: if the file is not one that `write_error` wrote.
    """
    if not attempt.error.exists():
        return None
    remedy = f"delete it; {attempt.log} has the error, too"
    record = read_object(attempt.error, remedy=remedy)
    if type(record.get("code")) is not int or not {"kind", "message"} <= record.keys():
        raise IntegrityError(
            f"{attempt.error}: expected `code`, `kind` and `message`, found {record!r:.80}; "
            f"{remedy}"
        )
    return record
