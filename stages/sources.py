"""What a config points at outside the graph: files, hub revisions. Their contents belong to the stage key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from stages.identity import digest_of_tree
from stages.settings import LOCAL_SOURCES
from training_core.errors import DataError

AnyBlock = TypeVar("AnyBlock", bound=BaseModel)


def local_sources(block: BaseModel, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted field, path) of every file or directory that `block` names."""
    if isinstance(block, LOCAL_SOURCES):
        yield f"{prefix}path", block.path
    for name in type(block).model_fields:
        value = getattr(block, name)
        if isinstance(value, BaseModel):
            yield from local_sources(value, f"{prefix}{name}.")


def rooted(block: AnyBlock, root: Path) -> AnyBlock:
    """Return `block` with every relative path joined to `root`."""
    updates: dict[str, object] = {}
    if isinstance(block, LOCAL_SOURCES):
        updates["path"] = str((root / block.path).resolve())
    for name in type(block).model_fields:
        value = getattr(block, name)
        if isinstance(value, BaseModel):
            updates[name] = rooted(value, root)
    return block.model_copy(update=updates)


def missing_sources(block: BaseModel, prefix: str = "") -> list[str]:
    """Describe every named file or directory that is not there."""
    return [
        f"{field}: there is no file or directory {path}; set data_root (or RATCHET_SHARED) to where the data is"
        for field, path in local_sources(block, prefix)
        if not Path(path).exists()
    ]


def digests_of_sources(block: BaseModel) -> dict[str, str]:
    """Digest the contents of every named file or directory, by field.

    Raises:
        DataError: if one is not there.
    """
    if missing := missing_sources(block):
        raise DataError("; ".join(missing))
    return {field: digest_of_tree(Path(path)) for field, path in local_sources(block)}
