"""Stage processes that a fork server makes, with torch and transformers already imported.

Imports take seconds in each stage process. The first stage process starts a fork server
(`stages.runtime.fork_server`), which imports once; it and all later ones are then forked. A server
serves only processes that would import the same (`_key_of`), and ends after some idle minutes.
Without a server a stage does its own imports, and nothing else differs.

This module imports only the standard library, because it is what each stage process waits for.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

FOLDER_VARIABLE = "RATCHET_FORK_SERVER"
"""Folder of the servers' sockets, which only this user may enter; no servers if unset or empty."""
PER_PROCESS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables that may differ between stages of one server, like all of Ray; no import reads them."""
ACCEPTED = b"+"
"""Sent by the server before it forks; from then on the stage may have begun."""
START_SECONDS = 120.0
SET_BY_IMPORTS: dict[str, str] = {}
"""In a forked stage: variables that its server's imports have set, and those of a worker will."""
TRANSIENT = 75
"""`ExitCode.TRANSIENT`; importing it takes longer than this whole module."""


class ForkedStage:
    """A stage that a server has forked, with the methods of `subprocess.Popen` that callers use.

    The stage is killed when this object's process ends.

    Args:
        connection: the process that watches the stage, at its other end.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code; None while the stage runs, negative for a signal."""
        if self._code is None:
            try:
                self._code = self._receive(socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
        return self._code

    def wait(self) -> int:
        """Wait for the end and return the exit code."""
        if self._code is None:
            self._code = self._receive(0)
        return self._code

    def send_signal(self, number: int) -> None:
        """Send a signal to the stage, if it runs."""
        try:
            self._connection.sendall(bytes([number]))
        except OSError:  # it has ended
            return

    def _receive(self, flags: int) -> int:
        try:
            code = self._connection.recv(16, flags)
        except ConnectionError:
            code = b""
        return int(code) if code else TRANSIENT  # the process that watches the stage was killed


def run_forked(arguments: Sequence[str]) -> int | None:
    """Run `python -m stages <arguments>` as a forked stage, as if it were this process.

    SIGTERM and SIGINT are passed on. A stage that was killed by a signal kills this process, too.

    Returns:
        The exit code; None if this process must run the stage itself.
    """
    # At a terminal there may be a debugger, and the keyboard's signals go to this process only.
    if len(arguments) != 1 or not arguments[0].endswith(".json") or any(map(os.isatty, range(3))):
        return None
    stage = fork_stage(Path(arguments[0]), os.environ)
    if stage is None:
        return None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: stage.send_signal(received))
    code = stage.wait()
    if code < 0:
        if -code in (signal.SIGTERM, signal.SIGINT):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def fork_stage(
    request: Path, environment: Mapping[str, str], output: int | None = None
) -> ForkedStage | None:
    """Let a server fork `python -m stages <request>`; start the server if there is none.

    Args:
        request: file that describes the stage.
        environment: all variables of the new process.
        output: file descriptor for its output; None for the streams of this process.

    Returns:
        The stage; None if the caller must start the process itself.
    """
    if not environment.get(FOLDER_VARIABLE):
        return None
    streams = [0, 1, 2] if output is None else [0, output, output]
    own = {name: value for name, value in environment.items() if _is_own(name)}
    given = dict(environment.items() - SET_BY_IMPORTS.items())
    shared = {name: value for name, value in given.items() if not _is_own(name)}
    try:
        connection = _connect(_private(Path(environment[FOLDER_VARIABLE])), shared)
        if connection is None:
            return None
        with tempfile.TemporaryFile("w+") as order:
            json.dump([str(request), str(Path.cwd()), own], order)
            order.seek(0)
            socket.send_fds(connection, [b"+"], [*streams, order.fileno()])
        connection.settimeout(START_SECONDS)
        if connection.recv(1) != ACCEPTED:
            raise ConnectionResetError("it ended")
        connection.settimeout(None)
    except ConnectionError:
        sys.stderr.write(
            "this stage does its own imports, because the fork server has just ended, e.g. after a "
            "change of a source file; the next stage starts a new one\n"
        )
    except (OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"this stage does its own imports, without a fork server: {error}\n")
    else:
        return ForkedStage(connection)
    return None


def _is_own(name: str) -> bool:
    return name in PER_PROCESS or name.startswith("RAY_")


def _private(folder: Path) -> Path:
    """Return the folder, made if necessary, which only this user may enter."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(
            f"expected {folder} to be a folder of this user with mode 700, found "
            f"uid {found.st_uid} and mode {stat.S_IMODE(found.st_mode):o}; correct it, or "
            f"set {FOLDER_VARIABLE} to another folder"
        )
    return folder


def _connect(folder: Path, environment: Mapping[str, str]) -> socket.socket | None:
    """Return a connection to the server for `environment`; None if it could not fork safely."""
    path = folder / f"{_key_of(environment)}.sock"
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # or two stages that start together start two servers
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            if not _start_server(path, environment):
                return None
            connection.connect(str(path))
    return connection


def _key_of(environment: Mapping[str, str]) -> str:
    """Digest all that a process inherits and its imports may depend on."""
    status = Path("/proc/self/status").read_text().splitlines()
    kept = ("Umask", "Uid", "Gid", "Groups", "Cpus_allowed", "Mems_allowed")
    inherited = [
        *(sys.executable, str(Path.cwd()), os.nice(0)),
        *(line for line in status if line.startswith(kept)),
        *(Path(f"/proc/self/{name}").read_text() for name in ("limits", "cgroup")),
    ]
    text = json.dumps([inherited, sorted(environment.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _start_server(path: Path, environment: Mapping[str, str]) -> bool:
    """Start the server of the socket `path`, and wait until it has imported everything."""
    refused = path.with_suffix(".refused")
    if refused.exists():
        return False
    with path.with_suffix(".log").open("ab") as log:
        subprocess.run(
            [sys.executable, "-m", "stages.runtime.fork_server", str(path)],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ray kills the process group of a job at its end
            timeout=START_SECONDS,
            check=True,
        )
    return not refused.exists()
