"""The reference of the configuration: every field of every block, from the classes themselves."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from flows.config.form import LIMITS
from flows.config.lifecycle_config import LifecycleConfig
from stages.catalog import STAGES
from stages.configs.explanation import models_in
from stages.configs.stage_record import StageRecord
from website.commands import escaped

PLACE = "reference/configuration.md"
LONGEST = 60
"""Characters of a default that the table shows."""

TOP = """\
# Configuration

Made from the classes of the code when this site is built. A preset is a
[LifecycleConfig](#lifecycleconfig), and each of its blocks has a class of its own
([presets](../configuration.md)).

A field is *semantic* if it can change the result of a stage: then it is part of the stage key, and
another value runs the stage again. An *operational* field changes nothing but rounding.
"""
HEAD = "| field | type and range | default | description |\n|---|---|---|---|\n"
PLAIN = {int: "whole number", float: "number", str: "text", bool: "`true` or `false`"}
PLAIN |= {object: "anything", Any: "anything"}


def page() -> str:
    """Return the page, in Markdown."""
    return "\n".join([TOP, *(_section(block) for block in blocks())])


def blocks() -> list[type[BaseModel]]:
    """Return the classes of all blocks: that of a preset first, then those below it, in order."""
    found: dict[type[BaseModel], None] = {}
    for root in (LifecycleConfig, *(record.config for record in STAGES.values())):
        _add_blocks(root, found)
    return list(found)


def _add_blocks(block: type[BaseModel], found: dict[type[BaseModel], None]) -> None:
    if block in found:
        return
    found[block] = None
    for field in block.model_fields.values():
        for below in models_in(field.annotation):
            _add_blocks(below, found)


def _section(block: type[BaseModel]) -> str:
    stages = (record for record in STAGES.values() if record.config is block)
    parts = [
        f"## {block.__name__}",
        escaped(inspect.cleandoc(block.__doc__ or "")),
        *(_stage_line(record) for record in stages),
        *_used_in(block),
        HEAD + "".join(_row(name, field) for name, field in block.model_fields.items()),
    ]
    return "\n\n".join(parts)


def _stage_line(record: StageRecord) -> str:
    roles = [f"`{role}`" for role in record.required]
    roles += [f"`{role}` (optional)" for role in record.optional]
    roles += [f"`{family}…`" for family in record.families]
    takes = ", ".join(roles) or "none"
    makes = record.makes.replace("_", " ")
    return f"Stage `{record.name}`, version {record.version}. Inputs: {takes}. Makes: {makes}."


def _used_in(block: type[BaseModel]) -> Iterator[str]:
    places = [
        f"[{user.__name__}](#{user.__name__.lower()}).`{name}`"
        for user in blocks()
        for name, field in user.model_fields.items()
        if block in models_in(field.annotation)
    ]
    if places:
        yield f"Used in: {', '.join(places)}"


def _row(name: str, field: FieldInfo) -> str:
    extra = field.json_schema_extra
    kind = "semantic" if isinstance(extra, dict) and extra["semantic"] else "operational"
    values = "<br>".join(filter(None, (type_of(field.annotation), range_of(field))))
    cells = (f"`{name}`<br>{kind}", values, default_of(field), escaped(field.description or ""))
    return f"| {' | '.join(cells)} |\n"


def type_of(annotation: Any) -> str:
    """Return the type of a field in words; a block is a link to its section."""
    if annotation in PLAIN:
        return PLAIN[annotation]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    if get_origin(annotation) is Annotated:
        return type_of(get_args(annotation)[0])
    return _compound(get_origin(annotation), get_args(annotation))


def _compound(origin: Any, arguments: tuple[Any, ...]) -> str:
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is tuple:
        items = dict.fromkeys(type_of(item) for item in arguments if item is not ...)
        return f"list of {', '.join(items)}"
    if origin is dict:
        return f"block of name: {type_of(arguments[1])}"
    if origin in (Union, UnionType):
        return " or ".join("null" if a is type(None) else type_of(a) for a in arguments)
    raise TypeError(f"no words for the type {origin} of {arguments}; add them")


def default_of(field: FieldInfo) -> str:
    """Return the default of a field as a preset would write it."""
    if field.is_required():
        return "needed"
    default = field.get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        values = default.model_dump(mode="json")
        changed = default.model_dump(mode="json", exclude_defaults=True)
        keys = sorted(values, key=lambda key: key != "name")
        shown = {key: values[key] for key in keys if key == "name" or key in changed}
        return f"`{{{', '.join(f'{key}: {value}' for key, value in shown.items())}}}`"
    text = json.dumps(default, ensure_ascii=False)
    return f"`{text}`" if len(text) <= LONGEST else "a longer text"


def range_of(field: FieldInfo) -> str:
    """Return the limits of a field in words."""
    words = [
        f"{what} {_number(getattr(limit, key))}"
        for limit in field.metadata
        for key, what in LIMITS.items()
        if getattr(limit, key, None) is not None
    ]
    words += ["not empty" for limit in field.metadata if getattr(limit, "min_length", None)]
    patterns = (getattr(limit, "pattern", None) for limit in field.metadata)
    words += [f"matches `{pattern}`" for pattern in patterns if pattern]
    return ", ".join(words)


def _number(limit: float) -> str:
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"
