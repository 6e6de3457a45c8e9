"""JSON as its standard defines it: one value per key, finite numbers, UTF-8.

Python's reader takes the last of two equal keys, and `NaN`, `Infinity` and 1e400 as numbers.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from training_core.errors import IntegrityError


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON value.

    Raises:
        ValueError: if it is not JSON, has a key twice in one object, or a number that is not
            finite.
    """
    try:
        return json.loads(
            text.decode() if isinstance(text, bytes) else text,
            object_pairs_hook=_object,
            parse_constant=_number,
            parse_float=_number,
        )
    except RecursionError as error:
        raise ValueError("the values are nested too deeply") from error


def read_object(path: Path, *, remedy: str) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Args:
        path: the file.
        remedy: what to do if the file is broken, for the message.

    Raises:
        FileNotFoundError: if there is no file.
        IntegrityError: if it is broken; the message names the file.
    """
    try:
        value = parse_json(path.read_bytes())
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{path}: expected a JSON object, found {error}; {remedy}") from error
    if not isinstance(value, dict):
        raise IntegrityError(f"{path}: expected a JSON object, found {value!r:.80}; {remedy}")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {twice!r:.80} twice")
    return found


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text:.40}, which is not finite")
    return value
