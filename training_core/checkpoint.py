"""Training checkpoints that are either complete or invisible.

    <root>/step-00000100/{<model>.safetensors…, state.pt, shards/…, COMPLETE}

Everything is written into a hidden directory and fsynced; `COMPLETE` is written last and lists the
files with sizes and SHA-256, and then the directory gets its name. Older checkpoints are deleted
only after that, so a complete one always exists. With several ranks the first one writes, and each
adds its own shards.
"""

from __future__ import annotations

import hashlib
import json
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
from training_core.storage import writing

MARKER = "COMPLETE"
SHARDS = "shards"


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
    final = root / f"step-{step:08d}"
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
        save_model(model, str(draft / f"{name}.safetensors"))
    with (draft / "state.pt").open("wb") as file:  # an open file, so that a full disk is an OSError
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
    aside = final.with_name(final.name + ".replaced")
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
    newest = complete[0].step  # not protected: a damaged run may have left later ones
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

    One without a marker, or with a file whose size is not the recorded one, is not complete.
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
    try:
        expected = json.loads((checkpoint.directory / MARKER).read_text())["sha256"]
        found = {name: _sha256(checkpoint.directory / name) for name in expected}
    except (FileNotFoundError, KeyError, ValueError) as error:  # deleted meanwhile, or incomplete
        raise IntegrityError(f"{checkpoint.directory} is not whole: {error!r}") from error
    for name, sha256 in expected.items():
        if found[name] != sha256:
            raise IntegrityError(
                f"{checkpoint.directory / name}: expected sha256 {sha256[:12]}…, "
                f"found {found[name][:12]}…"
            )
    for name, model in models.items():
        load_model(model, str(checkpoint.directory / f"{name}.safetensors"))
    return torch.load(checkpoint.directory / "state.pt", map_location="cpu", weights_only=True)


def _step_if_complete(marker: Path) -> int | None:
    try:
        record = json.loads(marker.read_text())
        sizes = {name: (marker.parent / name).stat().st_size for name in record["files"]}
    except (OSError, ValueError, KeyError):
        return None
    return int(record["step"]) if sizes == record["files"] else None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
