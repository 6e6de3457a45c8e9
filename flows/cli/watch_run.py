"""`ratchet run` and `ratchet watch`: look at a run until it ends, or leave it with Ctrl-C."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from uuid import UUID

import typer
from prefect.client.schemas.objects import FlowRun

from flows.cli.change_run import cancel_run
from flows.cli.find_runs import find_run, short_id
from flows.cli.run_display import display_for
from flows.cli.run_results import is_completed, show_end
from flows.cli.run_view import RunView, view_of
from flows.cli.session import Session, open_session
from flows.cli.start_run import check_run, start_run
from flows.cli.terminal import Terminal

REFRESH_SECONDS = 1.0
LEFT = 130
"""Exit code of a command that was left with Ctrl-C, as of every program of a shell."""


def run(
    preset: str,
    flow: str,
    overrides: Mapping[str, object],
    force: Sequence[str] = (),
    *,
    is_detached: bool = False,
) -> int:
    """Start a lifecycle and watch it.

    Args:
        preset: a name, or the path of a .yaml file.
        flow: its name.
        overrides: changes to the preset.
        force: steps to do again although they are done.
        is_detached: print where the run is, and do not wait for it.

    Returns:
        The exit code; see `watch_run`.

    Raises:
        ConfigError: for an unknown flow, preset, key, value or step, before anything starts.
        ServiceError: if no Prefect server answers.
    """
    parameters, console = check_run(preset, flow, overrides, force), Terminal()
    with open_session() as session:
        started = start_run(session.client, flow, parameters)
        tell_started(session, started, console)
        return 0 if is_detached else watch_run(session, started.id, console)


def watch(named: str | None) -> int:
    """Watch a run that was started earlier; without a name the newest.

    Returns:
        The exit code; see `watch_run`.
    """
    console = Terminal()
    with open_session() as session:
        found = find_run(session.client, named)
        tell_started(session, found, console)
        return watch_run(session, found.id, console)


def tell_started(session: Session, run: FlowRun, console: Terminal) -> None:
    """Print name, id and address of a run."""
    console.print(f"run      {run.name}", soft_wrap=True)
    console.print(f"id       {run.id}", soft_wrap=True)
    console.print(f"address  {session.page_of(run.id)}", soft_wrap=True)


def watch_run(session: Session, run_id: UUID, console: Terminal) -> int:
    """Show a run until it ends; Ctrl-C asks whether to leave it going or to cancel it.

    Returns:
        0 if it completed, 1 if it ended otherwise, 130 if it was left going.
    """
    while True:
        try:
            view = _until_it_ends(session, run_id, console)
            break
        except KeyboardInterrupt:
            if not _shall_cancel(console):
                console.print(f"it goes on; look again with `ratchet watch {short_id(run_id)}`")
                return LEFT
        if not view_of(session, run_id).is_final:  # it may have ended while a person was asked
            cancel_run(session.client, session.client.read_flow_run(run_id))
    show_end(session, view, console)
    return 0 if is_completed(view) else 1


def _until_it_ends(session: Session, run_id: UUID, console: Terminal) -> RunView:
    display = display_for(console)
    with display:
        while True:
            view = view_of(session, run_id)
            display.show(view)
            if view.is_final:
                return view
            time.sleep(REFRESH_SECONDS)


def _shall_cancel(console: Terminal) -> bool:
    """Ask, where a person can answer; a second Ctrl-C means no."""
    if not (console.is_terminal and sys.stdin.isatty()):
        return False
    try:
        return typer.confirm("\nCancel the run? Otherwise it goes on.", default=False)
    except typer.Abort:
        return False
