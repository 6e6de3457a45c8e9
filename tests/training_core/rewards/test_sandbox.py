"""What a program in the sandbox can do, and what it cannot."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

from training_core.errors import ConfigError
from training_core.rewards import sandbox as sandboxes
from training_core.rewards.sandbox import Isolation, Limits, Sandbox, strongest_isolation

LIMITS = Limits(seconds=60, memory_mib=256, file_mib=1, processes=64)


@pytest.fixture
def sandbox():
    return Sandbox(LIMITS, needs_isolation=False)


@pytest.fixture
def in_namespaces(sandbox):
    if not strongest_isolation().command:
        pytest.skip("this machine does not allow namespaces")
    return sandbox


def test_a_program_gets_its_input_and_its_output_is_returned(sandbox):
    outcome = sandbox.run("import sys; print(input()); sys.stderr.write('oops'); sys.exit(3)", "hi")
    assert (outcome.exit_code, outcome.output, outcome.error) == (3, b"hi\n", "oops")


def test_no_variable_of_the_stage_reaches_it(sandbox, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "sesame")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    outcome = sandbox.run("import os; print(sorted(os.environ.items()), flush=True)")
    assert outcome.exit_code == 0
    assert b"PATH" in outcome.output
    assert b"sesame" not in outcome.output
    assert b"somewhere" not in outcome.output


def test_it_starts_in_an_empty_folder_that_is_deleted(sandbox):
    program = "import os; print(os.getcwd()); open('new', 'w').close(); print(os.listdir())"
    folder, files = sandbox.run(program).output.decode().splitlines()
    assert sorted(eval_list(files)) == ["new", "program.py"]
    assert not Path(folder).exists()


def eval_list(text):
    return [name.strip(" '") for name in text.strip("[]").split(",")]


def test_its_time_is_limited_with_all_that_it_started():
    quick = Sandbox(Limits(0.5, 256, 1, 64), needs_isolation=False)
    program = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "while True: pass"])
while True: pass
"""
    assert quick.run(program).exit_code is None


def test_its_memory_is_limited(sandbox):
    outcome = sandbox.run("x = bytearray(1024 * 2**20)")
    assert outcome.exit_code != 0
    assert "MemoryError" in outcome.error


def test_its_files_and_its_output_are_limited(sandbox):
    outcome = sandbox.run("open('large', 'wb').write(bytes(2 * 2**20))")
    assert outcome.exit_code != 0
    outcome = sandbox.run("import os\nwhile True: os.write(1, bytes(2**16))")
    assert outcome.exit_code not in (0, None)
    assert len(outcome.output) == 2**20


FORKS = """
import os, time
for number in range(200):
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
"""


def test_its_processes_are_limited(monkeypatch):
    if os.geteuid() == 0:  # root has no such limit, so the program becomes another user
        monkeypatch.setattr("sys.executable", readable_python())
        strongest_isolation.cache_clear()
    try:
        outcome = Sandbox(LIMITS, needs_isolation=False).run(FORKS)
    finally:
        strongest_isolation.cache_clear()
    assert outcome.exit_code == 1
    assert "BlockingIOError" in outcome.error


def readable_python():
    """A Python that every user can read; that of the tests may be in root's home."""
    found = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if found is None:
        pytest.skip("there is no Python that another user can read")
    return found


def test_its_network_is_off(in_namespaces):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        program = f"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=60)"
        outcome = in_namespaces.run(program)
    assert outcome.exit_code == 1
    assert "Network is unreachable" in outcome.error


def test_it_sees_no_process_of_the_machine(in_namespaces):
    program = "import os; print(len([name for name in os.listdir('/proc') if name.isdigit()]))"
    if strongest_isolation().gap.endswith("it sees all processes"):
        pytest.skip("this machine does not allow a /proc of its own")
    assert int(in_namespaces.run(program).output) <= 2


def test_it_sees_no_file_of_the_stage_and_changes_none(sandbox, tmp_path):
    if not strongest_isolation().hides_files:
        pytest.skip("this machine has no Landlock")
    secret = tmp_path / "token"
    secret.write_text("sesame")
    for action in ("read_text()", "write_text('x')", "unlink()", "parent.joinpath('new').mkdir()"):
        outcome = sandbox.run(f"from pathlib import Path; Path({str(secret)!r}).{action}")
        assert outcome.exit_code == 1, action
        assert "PermissionError" in outcome.error
    assert os.listdir(tmp_path) == ["token"]  # noqa: PTH208
    assert secret.read_text() == "sesame"


def test_packages_of_python_can_be_used(sandbox):
    assert sandbox.run("import json, regex; print(regex.__name__)").output == b"regex\n"


def test_what_it_leaves_behind_ends_with_it(in_namespaces, tmp_path):
    program = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
"""
    before = children_asleep()
    assert in_namespaces.run(program).exit_code == 0
    assert children_asleep() - before == set()


def children_asleep():
    """Processes of programs in the sandbox."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"program.py" in (folder / "cmdline").read_bytes():
                found.add(folder.name)
        except OSError:
            continue
    return found


def test_a_gap_stops_a_config_that_needs_isolation(monkeypatch):
    weak = Isolation((), None, False, "the network is not off")
    monkeypatch.setattr(sandboxes, "strongest_isolation", lambda: weak)
    with pytest.raises(ConfigError, match="could run here, but the network is not off; run"):
        Sandbox(LIMITS, needs_isolation=True)


OPEN = "the network is not off, and what it leaves behind may survive"
FILES = "it can use all files of its user"
ROOT = "it runs as root, because no other user can read this Python"


@pytest.mark.parametrize(
    ("user", "gaps"),
    [
        (1000, [OPEN, f"{FILES}; {OPEN}"]),
        (0, [OPEN, f"{FILES}; {OPEN}", f"{ROOT}; {OPEN}", f"{ROOT}; {FILES}; {OPEN}"]),
    ],
)
def test_without_namespaces_the_strongest_isolation_is_tried_first(monkeypatch, user, gaps):
    monkeypatch.setattr("os.geteuid", lambda: user)
    monkeypatch.setattr("shutil.which", lambda _: None)
    found = list(sandboxes._isolations())
    assert [isolation.gap for isolation in found] == gaps
    assert {isolation.command for isolation in found} == {()}


def test_root_becomes_nobody_or_keeps_its_rights_only_in_a_namespace(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    found = list(sandboxes._isolations())
    assert (found[0].user, found[0].gap) == (65534, "")
    for isolation in found:
        if isolation.command:
            assert ("--user" in isolation.command) == (isolation.user is None)


def test_a_gap_is_in_the_log(monkeypatch, caplog):
    weak = Isolation((), None, False, "the network is not off")
    monkeypatch.setattr(sandboxes, "strongest_isolation", lambda: weak)
    assert Sandbox(LIMITS, needs_isolation=False).run("print(1)").output == b"1\n"
    assert "runs in a sandbox, but the network is not off" in caplog.text


def test_a_machine_on_which_no_program_runs_is_a_config_error(monkeypatch):
    monkeypatch.setattr("sys.executable", "/no/python")
    strongest_isolation.cache_clear()
    try:
        with pytest.raises(ConfigError, match="no program can be run in a sandbox on this machine"):
            Sandbox(LIMITS, needs_isolation=False)
    finally:
        strongest_isolation.cache_clear()
