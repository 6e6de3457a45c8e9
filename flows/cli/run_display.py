"""Shows a run that goes on: a table that is drawn again, or plain lines where no terminal is."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from flows.cli.run_view import RunView, StepView
from flows.cli.terminal import Terminal
from tasks.formatting import duration

PACE_SECONDS = 3600
"""The remaining time is estimated from the pace of this time, since a step may take minutes."""

DONE = ("Completed", "Reused")
"""States of a step that is finished; its result is known a moment later."""


class LiveTable:
    """The table of steps; below it a bar for each running step, with its key metric.

    Args:
        console: a terminal.
        clock: a time in seconds, from which the remaining time is estimated.
    """

    def __init__(self, console: Terminal, clock: Callable[[], float] = time.monotonic) -> None:
        self.drawing: RenderableType = ""
        self._live = Live(console=console, refresh_per_second=4)
        self._bars = Progress(
            TextColumn("  {task.description}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            speed_estimate_period=PACE_SECONDS,
            get_time=clock,
        )
        self._ids: dict[str, TaskID] = {}

    def __enter__(self) -> None:
        self._live.start()

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, view: RunView) -> None:
        """Draw it again."""
        running = {step.name: step for step in view.steps if step.progress}
        for name in [name for name in self._ids if name not in running]:
            self._bars.remove_task(self._ids.pop(name))
        for name, step in running.items():
            self._advance(name, step)
        title = f"{view.run.name}: {view.state}"
        bars = [self._bars.get_renderable()] if running else []
        hint = [view.hint] if view.hint else []
        self.drawing = Group(title, table_of(view), *bars, *hint)
        self._live.update(self.drawing)

    def _advance(self, name: str, step: StepView) -> None:
        progress = step.progress
        if progress is None:
            return
        if name not in self._ids:
            self._ids[name] = self._bars.add_task(name, total=progress.total, text="")
        self._bars.update(
            self._ids[name], completed=progress.done, total=progress.total, text=progress.text
        )


class PlainLines:
    """A line for each change of a state, without control characters, e.g. for a log.

    Args:
        console: a file or a pipe.
    """

    def __init__(self, console: Terminal) -> None:
        self._console = console
        self._states: dict[str, str] = {}

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def show(self, view: RunView) -> None:
        """Print what has changed since the last call."""
        if not view.is_final:
            hint = f". {view.hint}" if view.hint else ""
            self._tell("", view.state + view.hint, f"{view.run.name}: {view.state}{hint}")
        for step in view.steps:
            if step.result or view.is_final or step.state not in DONE:
                self._tell(step.name, step.state, _line_of(step))

    def _tell(self, name: str, state: str, line: str) -> None:
        if self._states.get(name) != state:
            self._console.print(line, soft_wrap=True)
            self._states[name] = state


def _line_of(step: StepView) -> str:
    worked = "" if step.is_running else f" after {duration(round(step.seconds))}"
    details = ", ".join(filter(None, (version_of(step), step.result)))
    return f"{step.name}: {step.state}{worked}{f', {details}' if details else ''}"


def display_for(console: Terminal) -> LiveTable | PlainLines:
    """Return the display that a console can show."""
    return LiveTable(console) if console.is_terminal else PlainLines(console)


def table_of(view: RunView) -> Table:
    """Return the steps as a table."""
    table = Table("step", "state", "result", "version", box=None, padding=(0, 2))
    table.add_column("time", justify="right")
    for step in view.steps:
        worked = duration(round(step.seconds))
        table.add_row(step.name, step.state, step.result, version_of(step), worked)
    return table


def version_of(step: StepView) -> str:
    """Return the version of a step's model as text; empty if it has none."""
    return "" if step.version is None else f"version {step.version}"
