"""Training checkpoints that are either complete or invisible.

    <root>/step-00000100/{<model>.safetensors…, state.pt, shards/…, COMPLETE}

Everything is written into a hidden directory and fsynced. `COMPLETE` is written last and lists the
files with sizes and SHA-256. Then the directory is renamed. Older checkpoints are deleted only
after that, so a complete one always exists. With several ranks, rank 0 writes the common files, and
each rank adds its own shards.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from torch import nn

from training_core.dist_info import SINGLE_PROCESS, DistInfo
from training_core.distributed import barrier
from training_core.errors import IntegrityError
from training_core.names import EXPECTED_FILE, is_file_below
from training_core.storage import writing
from training_core.strict_json import read_object

log = logging.getLogger(__name__)

MARKER = "COMPLETE"
SHARDS = "shards"
STATE = "state.pt"
ASIDE = ".replaced"
REMEDY = "delete this checkpoint; the stage then resumes from an older one"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    directory: Path
    step: int


def save(
    root: Path,
    step: int,
    models: Mapping[str, nn.Module],
    state: Mapping[str, Any],
    *,
    keep: int,
    keep_gib: float | None = None,
    protected: Iterable[int] = (),
    shards: Callable[[Path], None] | None = None,
    dist_info: DistInfo = SINGLE_PROCESS,
) -> Checkpoint:
    """Write a checkpoint of `models` and `state` below `root`, then delete old ones.

    Args:
        root: directory of this attempt's checkpoints.
        step: optimizer (or controller) steps done.
        models: whole models by name; weights are written to `<name>.safetensors`.
        state: tensors and plain values; read back with `weights_only=True`.
        keep: number of complete checkpoints to keep, in addition to the protected ones.
        keep_gib: delete the oldest beyond this total size, in GiB; the newest always stays.
        protected: steps whose checkpoints always stay, e.g. the best one.
        shards: writes the part of one rank below a directory; called on every rank.
        dist_info: this process; every rank calls this at the same step.

    Raises:
        StorageFullError: if the disk is full; earlier checkpoints are untouched.
    """
    final = root / _directory_name(step)
    draft = root / f".draft-{step:08d}"
    try:
        with writing(f"the checkpoint of step {step} in {root}"):
            if dist_info.is_first:
                shutil.rmtree(draft, ignore_errors=True)
                draft.mkdir(parents=True)
            barrier(dist_info)
            if shards is not None:
                shards(draft / SHARDS)
            if dist_info.is_first:
                _write(draft, models, state)
            barrier(dist_info)  # every shard is written
            if dist_info.is_first:
                _mark_complete(draft, step)
                _replace(final, draft)
    finally:
        if dist_info.is_first:  # an incomplete draft must not fill the disk
            shutil.rmtree(draft, ignore_errors=True)
    if dist_info.is_first:
        _rotate(root, keep, keep_gib, {step, *protected})
    barrier(dist_info)
    return Checkpoint(final, step)


def _write(draft: Path, models: Mapping[str, nn.Module], state: Mapping[str, Any]) -> None:
    for name, model in models.items():
        save_model(model, str(draft / _weights_of(name)))
    with (draft / STATE).open("wb") as file:  # an open file, so that a full disk is an OSError
        torch.save(dict(state), file)


def _mark_complete(draft: Path, step: int) -> None:
    paths = {p.relative_to(draft).as_posix(): p for p in draft.rglob("*") if p.is_file()}
    for path in paths.values():
        _fsync(path)
    record = {
        "step": step,
        "files": {name: path.stat().st_size for name, path in paths.items()},
        "sha256": {name: _sha256(path) for name, path in paths.items()},
    }
    (draft / MARKER).write_text(json.dumps(record))
    for path in (draft / MARKER, *(p for p in draft.rglob("*") if p.is_dir()), draft):
        _fsync(path)


def _replace(final: Path, draft: Path) -> None:
    """Rename `draft` to `final`; until then an existing `final` stays valid under another name."""
    aside = final.with_name(final.name + ASIDE)
    if final.exists():
        shutil.rmtree(aside, ignore_errors=True)
        final.rename(aside)
    draft.rename(final)
    _fsync(final.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _rotate(root: Path, keep: int, keep_gib: float | None, protected: set[int]) -> None:
    """Delete checkpoints beyond `keep` or `keep_gib`, and the remains of unfinished deletions."""
    complete = complete_checkpoints([root])
    whole = {c.directory for c in complete}
    left = float("inf") if keep_gib is None else keep_gib * 2**30
    left -= sum(_size(c.directory) for c in complete if c.step in protected)
    newest = complete[0].step  # may not be protected, but `keep_gib` never deletes it
    for number, old in enumerate(complete):
        if old.step in protected:
            continue
        left -= _size(old.directory)
        if number >= keep or (left < 0 and old.step != newest):
            whole.discard(old.directory)
    for directory in root.glob("step-*"):
        if directory not in whole:
            (directory / MARKER).unlink(missing_ok=True)  # first, so that it is not valid
            shutil.rmtree(directory)


def _size(directory: Path) -> int:
    return sum(p.stat().st_size for p in directory.rglob("*") if p.is_file())


def complete_checkpoints(roots: Iterable[Path]) -> list[Checkpoint]:
    """List the complete checkpoints below `roots`, the highest step first.

    One without a marker, or with a file whose size is not the recorded one, is not complete. A
    marker that `save` did not write, and a file of another size, are logged.
    """
    found = [
        Checkpoint(marker.parent, step)
        for root in roots
        for marker in root.glob(f"step-*/{MARKER}")
        if (step := _step_if_complete(marker)) is not None
    ]
    return sorted(found, key=lambda c: c.step, reverse=True)


def load(checkpoint: Checkpoint, models: Mapping[str, nn.Module]) -> dict[str, Any]:
    """Load weights into `models` and return the saved state.

    Raises:
        IntegrityError: if a file differs from what was saved; the message names it.
    """
    directory = checkpoint.directory
    try:
        record = _read_marker(directory / MARKER)
        _check_sizes(directory, record)
        found = {name: _sha256(directory / name) for name in record.sha256}
    except FileNotFoundError as error:  # deleted meanwhile
        raise IntegrityError(f"{directory} is not complete: {error}; {REMEDY}") from error
    for name in (STATE, *map(_weights_of, models)):
        if name not in record.files:
            raise IntegrityError(f"{directory / MARKER}: expected the file {name} in it; {REMEDY}")
    for name, sha256 in record.sha256.items():
        if found[name] != sha256:
            raise IntegrityError(
                f"{directory / name}: expected sha256 {sha256[:12]}…, "
                f"found {found[name][:12]}…; {REMEDY}"
            )
    for name, model in models.items():
        load_model(model, str(directory / _weights_of(name)))
    return torch.load(directory / STATE, map_location="cpu", weights_only=True)


@dataclass(frozen=True)
class _Marker:
    """Content of the file `COMPLETE`: size and SHA-256 of each file by its name."""

    step: int
    files: Mapping[str, int]
    sha256: Mapping[str, str]


def _read_marker(path: Path) -> _Marker:
    """Read a marker.

    Raises:
        FileNotFoundError: if there is none.
        IntegrityError: if it is not one that `save` wrote for this directory.
    """
    record = read_object(path, remedy=REMEDY)
    step: Any = record.get("step")
    files: Any = record.get("files")
    sha256: Any = record.get("sha256")
    if type(step) is not int or not _is_list_of_files(files, sha256):
        raise IntegrityError(
            f"{path}: expected `step`, and `files` and `sha256` of the same files, found "
            f"{record!r:.80}; {REMEDY}"
        )
    if outside := [name for name in files if not is_file_below(name)]:
        raise IntegrityError(f"{path}: {EXPECTED_FILE}, found {outside[0]!r:.80}; {REMEDY}")
    if path.parent.name.removesuffix(ASIDE) != _directory_name(step):
        raise IntegrityError(
            f"{path}: expected the step of the directory {path.parent.name}, found {step}; {REMEDY}"
        )
    return _Marker(step, files, sha256)


def _is_list_of_files(files: Any, sha256: Any) -> bool:
    return (
        isinstance(files, dict)
        and isinstance(sha256, dict)
        and files.keys() == sha256.keys()
        and all(type(size) is int for size in files.values())
        and all(isinstance(digest, str) for digest in sha256.values())
    )


def _step_if_complete(marker: Path) -> int | None:
    try:
        record = _read_marker(marker)
        _check_sizes(marker.parent, record)
    except OSError:
        return None
    except IntegrityError as error:
        log.warning("a checkpoint is skipped: %s", error)
        return None
    return record.step


def _check_sizes(directory: Path, record: _Marker) -> None:
    for name, size in record.files.items():
        if (found := (directory / name).stat().st_size) != size:
            raise IntegrityError(
                f"{directory / name}: expected {size} bytes, found {found}; {REMEDY}"
            )


def _directory_name(step: int) -> str:
    return f"step-{step:08d}"


def _weights_of(model: str) -> str:
    return f"{model}.safetensors"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
