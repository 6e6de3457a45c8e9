"""How a run looks while it goes on: bars, remaining time, and what a terminal does with Ctrl-C."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelled, Completed, Running

from flows.cli.run_display import LiveTable
from flows.cli.run_view import RunView, StepView
from flows.cli.terminal import Terminal
from flows.local_services.environment import ADDRESS_VARIABLES
from flows.local_services.paths import project_root
from stages.files import write_json
from stages.runtime.store import Store
from tasks.follow import StepProgress
from tests.flows.made_runs import finish_step, make_attempt, make_run, make_step

ADDRESSES = {*ADDRESS_VARIABLES.values(), "RATCHET_STORE"}
COMMAND = (sys.executable, "-m", "flows.cli.main")


def running(done: int, text: str = "loss 0.7") -> RunView:
    """A run whose step ppo has done so much of 100."""
    run = FlowRun(id=uuid4(), flow_id=uuid4(), name="tiny", state=Running())
    progress = StepProgress(done, 100, text)
    sft = StepView("sft", "Completed", False, False, 4.0, result="loss 2 → 1", version=3)
    ppo = StepView("ppo", "Running", True, False, 9.0, progress=progress)
    return RunView(run, (sft, ppo))


def drawn(table: LiveTable) -> str:
    shown = io.StringIO()
    Terminal(file=shown, width=120).print(table.drawing)
    return shown.getvalue()


def test_a_running_step_has_a_bar_its_metric_and_the_remaining_time():
    now = [0.0]
    table = LiveTable(Terminal(file=io.StringIO()), clock=lambda: now[0])
    table.show(running(20))
    assert "-:--:--" in drawn(table)  # the pace is not known yet
    now[0] = 60.0
    table.show(running(50, "reward 0.81"))  # 30 in 60 s: the other 50 take 100 s
    text = drawn(table)
    assert "50/100" in text
    assert "0:01:40" in text
    assert "reward 0.81" in text
    assert re.search(r"sft +Completed +loss 2 → 1 +version 3 +4 s", text)


def test_the_bar_goes_when_its_step_has_ended():
    table = LiveTable(Terminal(file=io.StringIO()))
    table.show(running(50))
    view = running(50)
    ended = StepView("ppo", "Completed", False, False, 9.0)
    table.show(RunView(view.run, (view.steps[0], ended)))
    assert "50/100" not in drawn(table)


# ---------------------------------------------------------------------------- a real terminal


@contextmanager
def at_a_terminal(home: Path, *arguments: str) -> Iterator[tuple[int, int]]:
    """Type a command at a terminal of its own; yield its pid and the other end of the terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        environment = {k: v for k, v in os.environ.items() if k not in ADDRESSES}
        environment |= {"RATCHET_HOME": str(home), "TERM": "xterm", "COLUMNS": "120"}
        os.chdir(project_root())
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # jobs in the background begin without it
        os.execve(sys.executable, (*COMMAND, *arguments), environment)
    try:
        yield pid, terminal
    finally:
        os.close(terminal)  # a command that still runs gets SIGHUP


def read_until(terminal: int, pattern: str, again: bytes = b"") -> str:
    """Read what the command shows until it has shown this; fail if it ends or takes two minutes.

    Args:
        terminal: the command's.
        pattern: a regular expression.
        again: a key that is pressed again after half a minute. Python overlooks a Ctrl-C in the
            moment between the prompt of `input` and its first look at the keyboard.
    """
    text, deadline = "", time.monotonic() + 120
    while not re.search(pattern, text):
        patience = min(deadline - time.monotonic(), 30 if again else 120)
        readable, _, _ = select.select([terminal], [], [], max(patience, 0))
        if not readable and again and time.monotonic() < deadline:
            os.write(terminal, again)
            continue
        assert readable, text
        try:
            text += os.read(terminal, 65536).decode(errors="replace")
        except OSError:  # the command has ended
            pytest.fail(f"it ended without {pattern!r}:\n{text}")
    return text


def code_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.services
@pytest.mark.timeout(900)
def test_a_terminal_shows_the_table_and_the_bar_until_the_run_ends(
    client: SyncPrefectClient, prefect_home: Path, home_store: Store, run_name: str
) -> None:
    run = make_run(client, run_name)
    finish_step(client, home_store, run.id, "sft")
    task = make_step(client, run.id, "ppo")
    attempt = make_attempt(home_store, run.id, "ppo")
    write_json(attempt.progress, {"done": 7, "total": 20, "text": "reward 0.81"})
    with at_a_terminal(prefect_home, "watch", run_name) as (pid, terminal):
        text = read_until(terminal, r"7/20.*reward 0\.81")
        assert re.search(r"sft +Completed +loss 2 → 1 +version 3", text)
        client.set_task_run_state(task, Completed(), force=True)
        client.set_flow_run_state(run.id, Completed(), force=True)
        read_until(terminal, f"{run_name}: Completed(?s:.*)stop it all")
        assert code_of(pid) == 0


@pytest.mark.services
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("answer", "code", "state"),
    [("\n", 130, "Running"), ("\x03", 130, "Running"), ("y\n", 1, "Cancelled")],
)
def test_ctrl_c_asks_whether_the_run_goes_on(
    client: SyncPrefectClient,
    prefect_home: Path,
    run_name: str,
    *,
    answer: str,
    code: int,
    state: str,
) -> None:
    run = make_run(client, run_name)
    with at_a_terminal(prefect_home, "watch", run_name) as (pid, terminal):
        read_until(terminal, f"{run_name}: Running")
        os.write(terminal, b"\x03")
        read_until(terminal, r"Cancel the run\?.*\[y/N\]: ")  # the blank comes as it begins to read
        os.write(terminal, answer.encode())
        said = "it goes on" if code == 130 else f"{run_name}: Cancelling"
        read_until(terminal, said, again=answer.encode() if answer == "\x03" else b"")
        if code == 1:
            client.set_flow_run_state(run.id, Cancelled(), force=True)  # as its process would
            read_until(terminal, "stop it all")
        assert code_of(pid) == code
    assert client.read_flow_run(run.id).state_name == state
