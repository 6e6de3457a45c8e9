"""Messages about invalid configs, with the nearest valid key or name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

UNION_ERRORS = ("union_tag_invalid", "union_tag_not_found", "model_attributes_type")
"""Pydantic's errors about the field `name`, which selects the member of a union."""

REMEDIES = {
    "int_type": "write a whole number, without quotes",
    "float_type": "write a number, without quotes",
    "bool_type": "write true or false",
    "string_type": "write a text; put it in quotes if it looks like a number or a date",
    "finite_number": "write a finite number",
    "tuple_type": "write a list, e.g. [a, b]",
    "dict_type": "write a block, e.g. {key: value}",
    "model_type": "write a block, e.g. {key: value}",
}
"""Pydantic's type of an error -> what to do."""


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Return one line per error.

    Args:
        error: raised by pydantic.
        model: class of the invalid config.
    """
    return "\n  ".join(_explain_one(details, model) for details in error.errors())


def models_in(annotation: object) -> list[type[BaseModel]]:
    """Return all models in an annotation, including those in unions and `Annotated`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in models_in(argument)]


def _explain_one(error: ErrorDetails, model: type[BaseModel]) -> str:
    path = ".".join(str(part) for part in error["loc"])
    message = error["msg"].removeprefix("Value error, ")
    if not error["loc"]:  # a rule about several keys; its message names them
        return message
    if error["type"] == "value_error" and isinstance(error["input"], Mapping):  # also such a rule
        return f"{path}: {message}"
    if error["type"] == "missing":
        return f"{path} is missing; add it"
    if error["type"] in UNION_ERRORS and (names := _names_at(model, error["loc"])):
        return f"{path}: {_explain_union(error, names)}"
    if error["type"] != "extra_forbidden":
        return f"{path}: {_explain_value(error, message)}"
    members = _models_at(model, error["loc"][:-1])
    known = list(members[0].model_fields) if len(members) == 1 else []
    near = get_close_matches(str(error["loc"][-1]), known, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"known are: {', '.join(known)}"
    return f"{path}: unknown key; {hint}"


def _explain_value(error: ErrorDetails, message: str) -> str:
    if error["input"] is None:
        return "expected a value, found null; write one, or leave the key out"
    remedy = REMEDIES.get(error["type"], "change it")
    return f"{message} (found {error['input']!r:.80}); {remedy}"


def _explain_union(error: ErrorDetails, names: Sequence[str]) -> str:
    """Describe a wrong or missing `name`, with the nearest valid name."""
    there_are = f"there are: {', '.join(names)}"
    if error["type"] == "union_tag_not_found":
        return f"`name` is missing; {there_are}"
    if error["type"] == "model_attributes_type":
        return f"expected a block with `name`, found {error['input']!r:.80}; {there_are}"
    tag = error.get("ctx", {})["tag"]
    near = get_close_matches(str(tag), names, n=1)
    return f"unknown name '{tag}'; " + (f"did you mean '{near[0]}'? " if near else "") + there_are


def _names_at(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """Return the names of the members of the union at `path`; empty if it is not a union."""
    members = _models_at(model, path)
    return [m.model_fields["name"].default for m in members] if len(members) > 1 else []


def _models_at(model: type[BaseModel], path: tuple[int | str, ...]) -> list[type[BaseModel]]:
    """Return the block at `path`, or the members of the union there."""
    members = [model]
    for part in path:
        if len(members) > 1:  # pydantic's path contains the name of the union's member
            members = [m for m in members if m.model_fields["name"].default == part]
        elif members and part in members[0].model_fields:
            members = models_in(members[0].model_fields[str(part)].annotation)
    return members
