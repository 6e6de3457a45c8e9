"""Waiting for a Ray cluster that does not answer, e.g. while its head is started again."""

from __future__ import annotations

import time
from logging import Logger, LoggerAdapter

from training_core.errors import UnreachableError

PAUSE_SECONDS = 2.0


class Outage:
    """How long the cluster has not answered. Waiting for it is no try of the stage.

    Args:
        limit_seconds: longest outage to wait for.
        log: is told once when an outage begins, and when it ends.
    """

    def __init__(self, limit_seconds: float, log: Logger | LoggerAdapter[Logger]) -> None:
        self._limit, self._log = limit_seconds, log
        self._since: float | None = None

    def wait(self, error: UnreachableError) -> None:
        """Wait a little before the next request.

        Raises:
            UnreachableError: `error`, if the cluster has not answered for too long.
        """
        now = time.monotonic()
        if self._since is None:
            self._since = now
            self._log.warning("waiting up to %.0f s: %s", self._limit, error)
        if now - self._since > self._limit:
            raise error
        time.sleep(PAUSE_SECONDS)

    def end(self) -> None:
        """Note that the cluster answers."""
        if self._since is not None:
            seconds = time.monotonic() - self._since
            self._log.info("the Ray cluster answers again after %.0f s", seconds)
        self._since = None
