"""Python's garbage collector around imports.

Importing torch, transformers or vLLM creates millions of objects, and all of them stay in use.
Searching them for garbage, then and at exit, takes a fifth of the time of a short stage
(docs/benchmarks.md, "Start of a process").
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """Disable the garbage collector inside the `with` block."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def exempt_present_objects() -> None:
    """Collect garbage now, and let later collections skip all objects that exist now."""
    gc.collect()
    gc.freeze()
