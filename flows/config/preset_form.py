"""The form of a deployment's overrides, which tells what its preset sets.

`flows.config.form` makes one form for all presets. A deployment has a preset, so its form is that
one with three changes: each field tells the preset's value where that is not the default, the
blocks that the preset has come first, and the others say that it has none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from flows.config.form import CLOSED
from flows.config.lifecycle_config import LifecycleConfig

MAX_VALUE = 80
"""Characters of a value that are shown."""


def is_form(schema: Mapping[str, Any]) -> bool:
    """Return whether a flow's parameters have the form of overrides."""
    return _block_of(schema.get("properties", {}).get("overrides", {})) is not None


def with_values_of(
    schema: Mapping[str, Any], preset: str, config: LifecycleConfig
) -> dict[str, Any]:
    """Return the parameters of a flow with the form of one preset.

    Args:
        schema: JSON schema of parameters for which `is_form` is true.
        preset: its name, for the descriptions.
        config: what it configures.
    """
    form = deepcopy(dict(schema))
    definitions: dict[str, Any] = form["definitions"]
    overrides = form["properties"]["overrides"]
    blocks = _with_values(_block_of(overrides), config, preset, definitions)
    for name, block in blocks["properties"].items():
        if getattr(config, name, None) is None:
            block["description"] += f" `{preset}` has none."
            block["position"] = 1  # behind the others, which have none
    overrides["anyOf"] = [CLOSED, blocks]
    overrides.pop("default", None)  # with it the page takes the empty block for an open one
    used = set(_definitions_below(form["properties"], definitions))
    form["definitions"] = {name: each for name, each in definitions.items() if name in used}
    return form


def _with_values(
    ref: str | None, block: BaseModel, preset: str, definitions: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a copy of a block's form whose fields, and those of blocks in it, tell their value."""
    form = deepcopy(definitions[str(ref)])
    infos = type(block).model_fields
    for key, field in form["properties"].items():
        if key not in infos:  # a field of another member of the union
            continue
        value, below = getattr(block, key), _block_of(field)
        if below and isinstance(value, BaseModel):
            filled = _with_values(below, value, preset, definitions)
            if filled != definitions[below]:  # else the shared one, which keeps the schema small
                field["anyOf"] = [CLOSED, filled]
        elif not below and (value != _default(infos[key]) or key == "name"):
            field["description"] += f" In `{preset}`: `{_shown(value)}`."
    return form


def _block_of(field: Mapping[str, Any]) -> str | None:
    """Return the definition behind the button that opens a block; None for another field."""
    if CLOSED not in field.get("anyOf", []):
        return None
    return field["anyOf"][1]["$ref"].rpartition("/")[2]


def _default(info: Any) -> object:
    return None if info.default is PydanticUndefined else info.default


def _shown(value: object) -> str:
    if isinstance(value, tuple | list) and any(isinstance(each, BaseModel) for each in value):
        return f"{len(value)} items"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 1]}…"


def _definitions_below(schema: object, definitions: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the definitions that a schema needs."""
    if isinstance(schema, list):
        for each in schema:
            yield from _definitions_below(each, definitions)
    if not isinstance(schema, dict):
        return
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        yield name
        yield from _definitions_below(definitions[name], definitions)
    for below in schema.values():
        yield from _definitions_below(below, definitions)
