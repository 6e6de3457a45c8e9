"""What is wrong with a config that a person wrote, with the nearest known key."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, get_args

from pydantic import BaseModel, ValidationError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Return one line for each thing that is wrong.

    Args:
        error: that pydantic raised.
        model: what was to be validated.
    """
    return "\n  ".join(_explain_one(details, model) for details in error.errors())


def models_in(annotation: object) -> list[type[BaseModel]]:
    """Return every model that an annotation mentions, through unions and `Annotated`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in models_in(argument)]


def _explain_one(error: ErrorDetails, model: type[BaseModel]) -> str:
    path = ".".join(str(part) for part in error["loc"])
    if not path:  # a rule about several keys, which it names itself
        return error["msg"].removeprefix("Value error, ")
    if error["type"] != "extra_forbidden":
        return f"{path}: {error['msg']} (found {error['input']!r:.80})"
    known = _known_keys(model, error["loc"][:-1])
    near = get_close_matches(str(error["loc"][-1]), known, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"known are: {', '.join(known)}"
    return f"{path}: unknown key; {hint}"


def _known_keys(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    members = [model]  # several below a union, until the path says which is meant
    for part in path:
        if len(members) > 1:  # pydantic names the union's member in the path
            members = [m for m in members if m.model_fields["name"].default == part]
        elif members and part in members[0].model_fields:
            members = models_in(members[0].model_fields[str(part)].annotation)
    return list(members[0].model_fields) if len(members) == 1 else []
