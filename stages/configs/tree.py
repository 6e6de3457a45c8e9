"""A config as a tree of blocks: visit all of them, or rewrite some."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar, cast

from pydantic import BaseModel

AnyBlock = TypeVar("AnyBlock", bound=BaseModel)


def blocks_at(block: BaseModel, prefix: str = "") -> Iterator[tuple[str, BaseModel]]:
    """Yield (prefix of its fields, block) of `block` and of all blocks in it, e.g. ("sft.", …)."""
    yield prefix, block
    for name in type(block).model_fields:
        for key, below in _blocks_in(getattr(block, name), name):
            yield from blocks_at(below, f"{prefix}{key}.")


def rewritten(block: AnyBlock, change: Callable[[BaseModel], BaseModel]) -> AnyBlock:
    """Return `block` with every block in it, and itself, replaced by what `change` returns.

    A block is changed before the blocks inside the result. Nothing is validated.
    """
    changed = change(block)
    updates: dict[str, object] = {}
    for name in type(changed).model_fields:
        value = getattr(changed, name)
        if any(True for _ in _blocks_in(value, name)):
            updates[name] = _rewritten_value(value, change)
    return cast("AnyBlock", changed.model_copy(update=updates))


def _blocks_in(value: object, name: str) -> Iterator[tuple[str, BaseModel]]:
    if isinstance(value, BaseModel):
        yield name, value
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _blocks_in(item, f"{name}.{i}")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _blocks_in(item, f"{name}.{key}")


def _rewritten_value(value: object, change: Callable[[BaseModel], BaseModel]) -> object:
    if isinstance(value, BaseModel):
        return rewritten(value, change)
    if isinstance(value, list | tuple):
        return type(value)(_rewritten_value(item, change) for item in value)
    if isinstance(value, Mapping):
        return {key: _rewritten_value(item, change) for key, item in value.items()}
    return value
