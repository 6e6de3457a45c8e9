"""Training checkpoints that are either complete or invisible.

    <root>/step-00000100/{<model>.safetensors…, state.pt, COMPLETE}

Everything is written into a hidden directory, fsynced, and renamed; `COMPLETE` is written last and
lists the files with their sizes. The older checkpoint is deleted only after that, so one that loads
always exists.
"""

from __future__ import annotations

import errno
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

from training_core.errors import IntegrityError, StorageFullError

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
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        for name, model in models.items():
            save_model(model, str(draft / f"{name}.safetensors"))
        torch.save(dict(state), draft / "state.pt")
        sizes = {path.name: path.stat().st_size for path in draft.iterdir()}
        for path in draft.iterdir():
            _fsync(path)
        shutil.rmtree(final, ignore_errors=True)
        draft.rename(final)
        marker = final / MARKER
        marker.write_text(json.dumps({"step": step, "files": sizes}))
        _fsync(marker)
        _fsync(root)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StorageFullError(
                f"no space left to save step {step} in {root}; free some, then run the stage "
                "again: it resumes from the last complete checkpoint"
            ) from error
        raise
    for old in complete_checkpoints([root])[keep:]:
        shutil.rmtree(old.directory)
    return Checkpoint(final, step)


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
        IntegrityError: if a file cannot be read; the message names it.
    """
    try:
        for name, model in models.items():
            load_model(model, str(checkpoint.directory / f"{name}.safetensors"))
        return torch.load(checkpoint.directory / "state.pt", map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise IntegrityError(
            f"checkpoint {checkpoint.directory} cannot be loaded ({error}); "
            "delete that folder to go on from an older checkpoint"
        ) from error


def _step_if_complete(marker: Path) -> int | None:
    try:
        record = json.loads(marker.read_text())
        sizes = {name: (marker.parent / name).stat().st_size for name in record["files"]}
    except (OSError, ValueError, KeyError):
        return None
    return int(record["step"]) if sizes == record["files"] else None


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
