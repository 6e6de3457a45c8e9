"""Training checkpoints that are either complete or invisible.

    <root>/step-00000100/{<model>.safetensors…, state.pt, COMPLETE}

Everything is written into a hidden directory, fsynced, and renamed; `COMPLETE` is written last and
lists the files with sizes and SHA-256. The older checkpoint is deleted only after that, so one that
loads always exists.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from torch import nn

from training_core.errors import IntegrityError
from training_core.storage import writing

MARKER = "COMPLETE"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    directory: Path
    step: int


def save(
    root: Path, step: int, models: Mapping[str, nn.Module], state: Mapping[str, Any], *, keep: int
) -> Checkpoint:
    """Write a checkpoint of `models` and `state` below `root`, then drop all but the newest `keep`.

    Args:
        root: directory of this attempt's checkpoints.
        step: optimizer (or controller) steps done.
        models: by name; weights go to `<name>.safetensors`.
        state: tensors and plain values; read back with `weights_only=True`.
        keep: how many complete checkpoints stay.

    Raises:
        StorageFullError: if the disk is full; earlier checkpoints are untouched.
    """
    final = root / f"step-{step:08d}"
    draft = root / f".draft-{step:08d}"
    shutil.rmtree(draft, ignore_errors=True)
    try:
        with writing(f"the checkpoint of step {step} in {root}"):
            _write(draft, models, state)
            shutil.rmtree(final, ignore_errors=True)
            _mark_complete(draft, final, step)
    finally:
        shutil.rmtree(draft, ignore_errors=True)  # what could not be saved must not fill the disk
    for old in complete_checkpoints([root])[keep:]:
        shutil.rmtree(old.directory)
    return Checkpoint(final, step)


def _write(draft: Path, models: Mapping[str, nn.Module], state: Mapping[str, Any]) -> None:
    draft.mkdir(parents=True)
    for name, model in models.items():
        save_model(model, str(draft / f"{name}.safetensors"))
    with (draft / "state.pt").open("wb") as file:  # an open file, so that a full disk is an OSError
        torch.save(dict(state), file)


def _mark_complete(draft: Path, final: Path, step: int) -> None:
    paths = list(draft.iterdir())
    for path in paths:
        _fsync(path)
    record = {
        "step": step,
        "files": {path.name: path.stat().st_size for path in paths},
        "sha256": {path.name: _sha256(path) for path in paths},
    }
    draft.rename(final)
    marker = final / MARKER
    marker.write_text(json.dumps(record))
    for path in (marker, final, final.parent):
        _fsync(path)


def complete_checkpoints(roots: Iterable[Path]) -> list[Checkpoint]:
    """List the complete checkpoints below `roots`, the highest step first.

    One without a marker, or with a file whose size is not the recorded one, does not count.
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
        IntegrityError: if a file is not what was saved; the message names it.
    """
    try:
        expected = json.loads((checkpoint.directory / MARKER).read_text())["sha256"]
        found = {name: _sha256(checkpoint.directory / name) for name in expected}
    except (FileNotFoundError, KeyError, ValueError) as error:  # rotated away meanwhile, or torn
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
