"""The lines on the screen while services start and stop."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress as Bars
from rich.progress import SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from flows.local_services.definitions import SERVICES


class Progress:
    """One line per service: a spinner, its name, its current activity and the elapsed time."""

    def __init__(self, names: list[str]) -> None:
        """Show the named services as waiting."""
        columns = (SpinnerColumn(), TextColumn("{task.description:8} {task.fields[doing]}"))
        # On stderr, because scripts read stdout.
        self._bars = Bars(*columns, TimeElapsedColumn(), console=Console(stderr=True))
        self._lines: dict[str, TaskID] = {
            name: self._bars.add_task(SERVICES[name].title, start=False, total=1, doing="waiting")
            for name in names
        }

    def __enter__(self) -> Self:
        """Start to show the lines."""
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop; the last state of the lines stays on the screen."""
        self._bars.stop()

    def report(self, name: str, doing: str) -> None:
        """Show the activity of a service; the activities `up` and `down` end its line."""
        line = self._lines[name]
        self._bars.start_task(line)
        self._bars.update(line, doing=doing, completed=1 if doing in ("up", "down") else 0)

    def say(self, text: str) -> None:
        """Show a message above the lines."""
        self._bars.console.print(text)
