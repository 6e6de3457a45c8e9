"""The stage keys that a lifecycle has requested, and a lock for each of them.

    <store>/lifecycles/<lifecycle>/<stage>/<key>        contains the step's name in the lifecycle

A manifest does not contain the lifecycles that use it. These files do, so that the registry can be
created again from the store. Processes also lock these files.
"""

from __future__ import annotations

import errno
import fcntl
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)

CANNOT_LOCK = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@contextmanager
def claim(root: Path, lifecycle: str, stage: str, key: str, *, step: str) -> Iterator[None]:
    """Lock a key of a lifecycle, and record that the lifecycle uses the key.

    If the filesystem has no locks, this is logged, and two flows at once may register twice.

    Args:
        root: the store's folder.
        lifecycle: the lifecycle that requests the key.
        stage: the stage's name.
        key: the stage key.
        step: the stage's name in the lifecycle's flow; a later claim does not change it.
    """
    path = _path(root, lifecycle, stage, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in CANNOT_LOCK:
                raise
            log.warning("%s cannot be locked; two flows at once may register twice", path)
        if path.stat().st_size == 0:
            file.write(step)
            file.flush()
        yield


def claimed_step(root: Path, lifecycle: str, stage: str, key: str) -> str | None:
    """Return the step's name in the lifecycle; None if the lifecycle never requested the key."""
    path = _path(root, lifecycle, stage, key)
    return path.read_text() if path.exists() else None


def _path(root: Path, lifecycle: str, stage: str, key: str) -> Path:
    return root / "lifecycles" / lifecycle / stage / key
