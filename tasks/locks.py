"""The stage keys that a lifecycle has requested, and a lock for each of them.

    <store>/lifecycles/<lifecycle>/<stage>/<key>        contains the step's name in the lifecycle

A manifest does not contain the lifecycles that use it. These files do, so that the registry can be
created again from the store. Processes also lock these files.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from training_core.names import is_name, require_name

log = logging.getLogger(__name__)

CANNOT_LOCK = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@contextmanager
def claim(root: Path, lifecycle: str, stage: str, key: str, *, step: str) -> Iterator[None]:
    """Lock a key of a lifecycle, and record that the lifecycle uses the key; see `locked`.

    Args:
        root: the store's folder.
        lifecycle: the lifecycle that requests the key.
        stage: the stage's name.
        key: the stage key.
        step: the stage's name in the lifecycle's flow; a later claim does not change it.
    """
    path = _path(root, lifecycle, stage, key)
    with locked(path) as file:
        if path.stat().st_size == 0:
            file.write(step)
            file.flush()
        yield


@contextmanager
def locked(path: Path) -> Iterator[IO[str]]:
    """Lock a file, which is created if it is missing, and yield it for appending.

    If the filesystem has no locks, this is logged, and two flows at once may register twice.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in CANNOT_LOCK:
                raise
            log.warning("%s cannot be locked; two flows at once may register twice", path)
        yield file


def claimed_step(root: Path, lifecycle: str, stage: str, key: str) -> str | None:
    """Return the step's name in the lifecycle; None if the lifecycle never requested the key."""
    path = _path(root, lifecycle, stage, key)
    return path.read_text() if path.exists() else None


def claimed_keys(root: Path, lifecycle: str, stage: str, step: str) -> Iterator[str]:
    """Yield the keys of a stage that the lifecycle requested for this step, newest first.

    Reads a file only when its key is needed, because an old lifecycle has thousands.
    """
    folder = root / "lifecycles" / require_name("lifecycle", lifecycle) / stage
    if not folder.is_dir():
        return
    with os.scandir(folder) as entries:
        files = [entry for entry in entries if entry.is_file() and is_name(entry.name)]
    for file in sorted(files, key=lambda file: file.stat().st_mtime_ns, reverse=True):
        if Path(file).read_text() == step:
            yield file.name


def lifecycles_in(root: Path) -> list[str]:
    """Return the names of all lifecycles that ever requested a stage of this store."""
    return sorted(path.name for path in (root / "lifecycles").glob("*") if path.is_dir())


def _path(root: Path, lifecycle: str, stage: str, key: str) -> Path:
    names = {"lifecycle": lifecycle, "stage": stage, "stage key": key}
    return (root / "lifecycles").joinpath(*(require_name(*item) for item in names.items()))
