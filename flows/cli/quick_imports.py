"""Imports of torch and transformers in two thirds of their time."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager

from training_core.collector import paused_collector
from training_core.hidden_packages import tell_transformers_to_do_without


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import inside the `with` block what needs the model classes of transformers.

    Packages that Ratchet does not use are not imported with them, and nothing that was imported is
    searched for garbage, neither now nor at exit (docs/benchmarks.md, "Start of a process").
    """
    atexit.register(gc.freeze)
    with paused_collector():
        tell_transformers_to_do_without()
        yield
