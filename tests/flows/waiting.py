"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator


def wait_until(is_true: Callable[[], bool], *, seconds: float = 120) -> None:
    for _ in looks(seconds):
        if is_true():
            return


def looks(seconds: float) -> Iterator[None]:
    """Yield until `seconds` are over: often at first, and a tenth later the longer it takes.

    Each look at a server costs the server as much as the one who looks.

    Raises:
        TimeoutError: then.
    """
    began = time.monotonic()
    while (waited := time.monotonic() - began) <= seconds:
        yield
        time.sleep(min(2.0, max(0.2, waited / 10)))
    raise TimeoutError(f"not within {seconds} s")
