"""The stage key: a digest of everything that determines the result of a stage."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from pydantic import BaseModel

from stages.configs.block import StageConfig
from stages.configs.stage_record import StageRecord

SCHEMA = 1
SETTLED_NS = 2_000_000_000
"""Age of a file whose time shows every further change; the coarsest filesystem has steps of 2 s."""


def digest_of(value: object) -> str:
    """Return the SHA-256 of `value` as canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def digest_of_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes; a file that has not changed is read once per process.

    A changed file has another size, time or inode. A file of this very moment is read again the
    next time: it may still change within the precision of its time.
    """
    with path.open("rb") as file:
        before = _state_of(file)
        if before in _DIGESTS:
            return _DIGESTS[before]
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        is_settled = time.time_ns() - before.modified_ns > SETTLED_NS
        if is_settled and _state_of(file) == before:
            _DIGESTS[before] = digest
    return digest


class _FileState(NamedTuple):
    device: int
    inode: int
    size: int
    modified_ns: int


_DIGESTS: dict[_FileState, str] = {}


def _state_of(file: BinaryIO) -> _FileState:
    found = os.fstat(file.fileno())
    return _FileState(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def digest_of_tree(root: Path) -> str:
    """Digest names and contents of all visible files below `root`, or of the file `root`.

    Names are relative to `root`.
    """
    if root.is_file():
        return digest_of_file(root)
    return digest_of([[str(p.relative_to(root)), digest_of_file(p)] for p in visible_files(root)])


def visible_files(root: Path) -> list[Path]:
    """Return all files below `root`, sorted, except those whose name starts with a dot.

    Network filesystems and file managers leave such files in any directory.
    """
    return [p for p in sorted(root.rglob("*")) if p.is_file() and not p.name.startswith(".")]


def semantic_part(block: BaseModel) -> dict[str, object]:
    """Return the fields of `block`, at any depth, that can change a result."""
    return {
        name: _plain(getattr(block, name))
        for name, info in type(block).model_fields.items()
        if isinstance(info.json_schema_extra, dict) and info.json_schema_extra["semantic"]
    }


def _plain(value: object) -> object:
    if isinstance(value, BaseModel):
        return semantic_part(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


def stage_key(spec: StageRecord, config: StageConfig, inputs: Mapping[str, str]) -> str:
    """Compute the stage key.

    Args:
        spec: contains the stage's name and version.
        config: its semantic fields are part of the key.
        inputs: digest of each input by role (outputs of parents, contents of datasets, base-model
            revisions).

    Returns:
        64 hexadecimal digits; the same on every machine.
    """
    return digest_of(
        {
            "schema": SCHEMA,
            "stage": spec.name,
            "version": spec.version,
            "config": semantic_part(config),
            "inputs": dict(inputs),
        }
    )
