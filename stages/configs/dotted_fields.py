"""A config as plain data, field by field: `ppo.kl_coef` and its value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping


def dotted_fields(config: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield (dotted field, value); only an empty mapping is a value of its own."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from dotted_fields(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def texts_of(config: Mapping[str, object]) -> dict[str, str]:
    """Return the fields that have a value, as text: a text as it is, anything else as JSON."""
    return {
        field: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for field, value in dotted_fields(config)
        if value not in (None, "", [], (), {})
    }
