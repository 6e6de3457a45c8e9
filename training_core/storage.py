"""Translation of all errors about a full disk into `StorageFullError`."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from safetensors import SafetensorError

from training_core.errors import StorageFullError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Translate a full disk into `StorageFullError`.

    Args:
        what: description of the file, for the message.

    Raises:
        StorageFullError: if the disk, the quota or the size limit is exhausted.
    """
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if not any(_number(e) in FULL for e in _chain(error)):
            raise
        raise StorageFullError(
            f"no space left to write {what}: free some space, then run the stage again; "
            "it resumes from the last complete checkpoint"
        ) from error


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes; torch's file writer fails a second time when it closes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _number(error: BaseException) -> int | None:
    """Return the errno; an error of safetensors has it only in its text."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"os error (\d+)", str(error))
    return int(found.group(1)) if found else None
