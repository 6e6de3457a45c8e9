"""Which stage keys a lifecycle has asked for, and who may look for or make what belongs to one.

    <store>/lifecycles/<lifecycle>/<stage>/<key>        its text is the step's name there

A manifest does not know the lifecycles that use it; these files do, so that the registry can be
made again from the store. They are also what processes lock.
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
    """Let one process at a time work on a key of a lifecycle, and note that it uses the key.

    Where the filesystem has no locks the log says so, and two flows at once may register twice.

    Args:
        root: the store's folder.
        lifecycle: who asks.
        stage: the stage's name.
        key: the stage key.
        step: the stage's name in the lifecycle's flow; the first claim's stays.
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
    """Return the step's name in the lifecycle; None if the lifecycle never asked for the key."""
    path = _path(root, lifecycle, stage, key)
    return path.read_text() if path.exists() else None


def _path(root: Path, lifecycle: str, stage: str, key: str) -> Path:
    return root / "lifecycles" / lifecycle / stage / key
