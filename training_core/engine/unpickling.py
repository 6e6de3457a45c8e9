"""Read files of `torch.save` that somebody else may have written, without running their code."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pickle import UnpicklingError
from typing import Any

from torch.serialization import safe_globals

from training_core.errors import IntegrityError

FORCED = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""Environment variable of torch; it overrides `weights_only=False` of a library."""


@contextmanager
def tensors_only(*allowed: Any) -> Iterator[None]:
    """Restrict every `torch.load` in the `with` block, also of libraries, to plain content.

    Args:
        allowed: classes that may be in the files, besides tensors and plain values. Loading creates
            them and sets their attributes.

    Raises:
        IntegrityError: if a file contains anything else, which could be code.
    """
    before = os.environ.get(FORCED)
    os.environ[FORCED] = "1"
    try:
        with safe_globals(list(allowed)):
            yield
    except UnpicklingError as error:
        raise IntegrityError(
            "a shard of the checkpoint holds something else than tensors and plain values, so it "
            "was not loaded, because that could run code; find out who wrote it, then delete the "
            f"checkpoint, and the stage resumes from an earlier one ({_reason(error)})"
        ) from None  # the text of torch recommends to load it all the same
    finally:
        if before is None:
            del os.environ[FORCED]
        else:
            os.environ[FORCED] = before


def _reason(error: UnpicklingError) -> str:
    """Return the forbidden name that torch found in the file, e.g. `posix.mkdir`."""
    found = re.search(r"GLOBAL (\S+)", str(error))
    return f"found {found.group(1)}" if found else type(error).__name__
