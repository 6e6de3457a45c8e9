"""The form in which Prefect's page asks for the overrides of a run.

Prefect makes the form from a JSON schema, and some schemas give a bad one (prefect-ui-library 3.15,
`src/schemas`). Therefore this schema differs from that of the config classes:

- Null is no alternative. It would be chosen at first and shown as 'Property is type "None"'.
- There are no defaults. The page sends them, and they would replace the preset's values. They are
  part of the description instead. So are ranges, which the page does not show.
- True and false are two choices. The page shows a boolean as a switch, which sends false.
- A block is closed at first: its first alternative has no fields. The type stands beside the
  alternatives, because the page takes the first one of type object for an empty block, and a block
  is empty when a block in it is opened.
- Of a union of blocks there is one block with the fields of all. The page tells alternatives apart
  by the number of keys that fit, and all blocks of a union have the key `name`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    WithJsonSchema,
    create_model,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from stages.configs.explanation import models_in

CLOSED: JsonSchemaValue = {"title": "as in the preset", "properties": {}, "enum": [{}]}
OPEN_TITLE = "change"
"""Label of the button that opens a block."""

NOTHING: dict[str, Any] = {}
"""Default of a flow's parameter that is a block; with None the page would have an alternative."""


def _filled_lines(given: Any) -> Any:
    """Return a list without the items that were added and left empty; a text is a list of lines."""
    lines = given.splitlines() if isinstance(given, str) else given
    if not isinstance(lines, list | tuple):
        return lines
    return [line for line in lines if line is not None and line != ""]


Lines: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_filled_lines)]
"""Lines of text. The page has a field for each, and sends null for one that is left empty."""

Choice = Annotated[bool, WithJsonSchema({"enum": [True, False]})]
LIMITS = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}


class _ClosedFirst:
    """Annotation of a block: it has no fields until a person opens it."""

    @staticmethod
    def __get_pydantic_json_schema__(
        block: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"type": "object", "anyOf": [CLOSED, handler(block)]}


@dataclass(frozen=True)
class Form:
    """Annotation of a dict: its JSON schema is a form for a part of this block.

    The dict itself is not validated. So unknown keys and wrong values reach `load_config`, which
    names the nearest known key and says what to write.
    """

    block: type[BaseModel]

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the schema of the form."""
        form = handler(_form_of((self.block,)).__pydantic_core_schema__)
        return {"type": "object", "anyOf": [CLOSED, form]}


@cache
def _form_of(blocks: tuple[type[BaseModel], ...]) -> type[BaseModel]:
    """Return a model with the fields of all blocks; it is used only for its JSON schema."""
    is_union = len(blocks) > 1 and all("name" in block.model_fields for block in blocks)
    fields: dict[str, Any] = {"name": _choice_of(blocks)} if is_union else {}
    for key in dict.fromkeys(key for block in blocks for key in block.model_fields):
        infos = {b: b.model_fields[key] for b in blocks if key in b.model_fields}
        if not any(_is_constant(info) for info in infos.values()):
            fields[key] = _field(key, infos, len(blocks))
    config = ConfigDict(title=OPEN_TITLE, protected_namespaces=(), json_schema_extra=_ask_for_none)
    return create_model("_".join(b.__name__ for b in blocks), __config__=config, **fields)


def _ask_for_none(schema: JsonSchemaValue) -> None:
    # Fields without a default are required by pydantic; a default of None would be in the schema.
    schema.pop("required", None)


def _choice_of(blocks: tuple[type[BaseModel], ...]) -> tuple[Any, FieldInfo]:
    """Return the field `name` of a union, which selects the block."""
    names = {_name(block): (block.__doc__ or "").partition("\n")[0] for block in blocks}
    told = " ".join(f"`{name}`: {what}" for name, what in names.items())
    choice = WithJsonSchema({"type": "string", "enum": list(names)})
    return Annotated[str, choice], Field(title="name", description=told)


def _field(
    key: str, infos: Mapping[type[BaseModel], FieldInfo], num_blocks: int
) -> tuple[Any, FieldInfo]:
    """Return type and description of a field that some or all of the blocks have."""
    types = dict.fromkeys(_type(info.annotation) for info in infos.values())
    type_ = str if str in types else Union[tuple(types)]  # noqa: UP007 - built from a list
    if len(types) > 1 and all(get_origin(each) is list for each in types):
        parts = (part for info in infos.values() for part in models_in(info.annotation))
        type_ = list.__class_getitem__(_form_of(tuple(dict.fromkeys(parts))))
    names_of: dict[str, list[str]] = {}
    for block, info in infos.items():
        names_of.setdefault(_describe(info), []).append(_name(block))
    if len(names_of) == 1 and len(infos) == num_blocks:
        (text,) = names_of
    else:
        text = " ".join(f"`{'`, `'.join(names)}`: {told}" for told, names in names_of.items())
    return type_, Field(title=key, description=text)


def _is_constant(info: FieldInfo) -> bool:
    """Return whether it is the name of a block, which nobody can choose."""
    return get_origin(info.annotation) is Literal and len(get_args(info.annotation)) == 1


def _name(block: type[BaseModel]) -> str:
    return block.model_fields["name"].default if "name" in block.model_fields else block.__name__


def _type(annotation: Any) -> Any:
    members = _members(annotation)
    if _are_blocks(members):
        form: Any = _form_of(members)
        return Annotated[form, _ClosedFirst]
    if len(members) == 1:
        return _plain(members[0])
    (several,) = (_plain(member) for member in members if get_origin(member) is tuple)
    one: Any = Annotated[str, Field(title="one")]
    return one | Annotated[several, Field(title="several")]


def _are_blocks(members: tuple[Any, ...]) -> bool:
    return all(isinstance(member, type) and issubclass(member, BaseModel) for member in members)


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, without None and without what `Annotated` adds."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(one for each in get_args(annotation) for one in _members(each))
    return () if annotation is type(None) else (annotation,)


def _plain(member: Any) -> Any:
    if member is bool:
        return Choice
    if get_origin(member) is dict:  # the page has a field for any JSON
        return dict[str, Any]
    if get_origin(member) is tuple:
        items = [_item(each) for each in get_args(member) if each is not ...]
        is_list = ... in get_args(member)
        return list.__class_getitem__(*items) if is_list else tuple.__class_getitem__(tuple(items))
    return member


def _item(annotation: Any) -> Any:
    members = _members(annotation)
    return _form_of(members) if _are_blocks(members) else _type(annotation)


def _describe(info: FieldInfo) -> str:
    """Return the description of a field with its default and its limits."""
    notes: list[str] = []
    if isinstance(info.default, str | int | float | tuple) and info.default != ():
        notes.append(f"default {json.dumps(info.default)}")
    for constraint in info.metadata:
        notes += [
            f"{words} {getattr(constraint, limit)}"
            for limit, words in LIMITS.items()
            if hasattr(constraint, limit)
        ]
    text = ", ".join(notes)
    return f"{info.description} {text[:1].upper()}{text[1:]}." if text else str(info.description)
