"""The file `canaries.json` of an attempt; imports no torch, because the manifest reads it."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from stages.attempt import Attempt
from stages.configs.canary_record import CanaryRecord
from stages.files import write_json
from training_core.errors import IntegrityError
from training_core.strict_json import read_object


def write_results(attempt: Attempt, results: Sequence[CanaryRecord]) -> None:
    """Write the results of an attempt's canaries."""
    rows = [result.model_dump() for result in results]
    write_json(attempt.canaries, {"canaries": rows}, indent=2)


def read_results(*attempts: Attempt) -> list[CanaryRecord] | None:
    """Return the results of the first attempt that has some; None if there are none.

    Raises:
        IntegrityError: if a file is not one that `write_results` wrote.
    """
    for attempt in attempts:
        if attempt.canaries.exists():
            remedy = "delete it, and the canaries run again"
            content = read_object(attempt.canaries, remedy=remedy)
            try:
                return [CanaryRecord.model_validate(row) for row in content["canaries"]]
            except (ValidationError, KeyError, TypeError) as error:
                raise IntegrityError(
                    f"{attempt.canaries}: expected the results of canaries, found "
                    f"{content!r:.80}; {remedy}"
                ) from error
    return None
