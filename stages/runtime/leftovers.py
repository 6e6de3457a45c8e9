"""What a store no longer needs: checkpoints of finished stages, and files of attempts that ended.

Results are never among it, and neither are logs, curves and errors. Whatever was written in the
last hour may belong to a running stage.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stages.runtime.manifest import Manifest, read_manifest
from stages.runtime.store import MANIFEST, Store
from training_core.errors import ConfigError, IntegrityError

HOUR = 3600
SET_ASIDE_CHECKPOINTS = "checkpoints.set-aside"


@dataclass(frozen=True)
class Leftover:
    """A folder that may be deleted.

    Attributes:
        path: the folder.
        why: what it is.
        size: bytes in it.
        written_at: Unix time of the newest file of its attempt.
    """

    path: Path
    why: str
    size: int
    written_at: float

    def delete(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.path)


def leftovers(store: Store, *, older_than: float, now: float) -> list[Leftover]:
    """Find what may be deleted, largest first.

    A stage key with a manifest that is damaged is left alone.

    Args:
        store: the store.
        older_than: seconds since an attempt wrote its last file; an hour at least.
        now: Unix time.
    """
    before = now - max(older_than, HOUR)
    found = [
        leftover
        for folder in sorted((store.root / "stages").glob("*/*/"))
        for leftover in _of_key(store, folder, before)
    ]
    return sorted(found, key=lambda leftover: leftover.size, reverse=True)


def _of_key(store: Store, folder: Path, before: float) -> Iterator[Leftover]:
    try:
        results = _results(folder)
    except (IntegrityError, ConfigError):
        return
    used = {result.attempt for result in results}
    is_finished = (folder / MANIFEST).exists()
    for attempt in store.attempts(folder.parent.name, folder.name):
        written_at = _newest(attempt.directory)
        if written_at > before:
            continue
        checkpoints = (attempt.checkpoints, attempt.directory / SET_ASIDE_CHECKPOINTS)
        if attempt.name in used:
            why, folders = "checkpoints of a finished stage", checkpoints
        else:
            why = "files of another attempt" if is_finished else "files of an unfinished stage"
            folders = (*checkpoints, attempt.artifact)
        for path in folders:
            if path.is_dir() and not path.is_symlink():
                yield Leftover(path, why, _size(path), written_at)


def _results(folder: Path) -> list[Manifest]:
    """Return all manifests of a key: the present one, and those that were set aside."""
    return [read_manifest(path) for path in folder.glob("manifest*.json")]


def _newest(folder: Path) -> float:
    times = [folder.stat().st_mtime, *(path.lstat().st_mtime for path in folder.rglob("*"))]
    return max(times)


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
