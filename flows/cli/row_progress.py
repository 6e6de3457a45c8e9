"""The progress of a command that makes rows: a bar on a terminal, otherwise a few plain lines."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from flows.cli.terminal import Terminal

LINES = 10
"""Lines, at most, that tell the progress where there is no terminal."""


class RowProgress:
    """Counts rows and shows how many of them are there.

    Args:
        what: plural of what is counted.
        done: rows that were there before.
        total: rows when the work is complete.
        console: where to show it; by default standard error, because scripts read standard output.
    """

    def __init__(self, what: str, done: int, total: int, console: Terminal | None = None) -> None:
        self._console = console or Terminal(stderr=True)
        self._what, self._done, self._total = what, done, total
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task(what, total=total, completed=done)

    def __enter__(self) -> Self:
        """Start to show it."""
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop; the bar stays on the screen."""
        if self._console.is_terminal:
            self._bar.stop()

    def advance(self, rows: int = 1) -> None:
        """Count rows that were made."""
        before, self._done = self._done, min(self._done + rows, self._total)
        if self._console.is_terminal:
            self._bar.update(self._task, completed=self._done)
        elif before * LINES // self._total < self._done * LINES // self._total:
            self._console.print(f"{self._done} of {self._total} {self._what}")
