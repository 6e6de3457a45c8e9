"""Runs Python programs that a model wrote, each in a process with limits.

docs/rewards.md describes what this keeps a program from, and what not.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

from training_core.errors import ConfigError
from training_core.rewards import sandbox_entry

log = logging.getLogger(__name__)

NOBODY = 65534
"""User and group that own nothing."""

MIB = 2**20
PROBE_SECONDS = 60
SHOWN_BYTES = 2000
OWN_USER = ("--user", "--map-current-user")

READABLE = (
    *dict.fromkeys((sys.prefix, sys.base_prefix)),
    *("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/proc", "/dev/urandom"),
)
"""What a program may read, apart from its own folder: Python, libraries, and its own processes."""


@dataclass(frozen=True)
class Limits:
    """What a program may use.

    Attributes:
        seconds: wall-clock time.
        memory_mib: address space of each of its processes.
        file_mib: size of each file that it writes, its output included.
        processes: processes and threads of its user.
    """

    seconds: float
    memory_mib: int
    file_mib: int
    processes: int


@dataclass(frozen=True)
class ProgramResult:
    """How a program ended.

    Attributes:
        exit_code: negative for a signal; None if it ran out of time.
        output: what it wrote on standard output.
        error: the end of what it wrote on standard error.
    """

    exit_code: int | None
    output: bytes
    error: str


class SandboxError(Exception):
    """The sandbox could not be set up, so that the program never ran."""


@dataclass(frozen=True)
class Isolation:
    """What separates a program from its machine, besides the limits.

    Attributes:
        command: starts the program in namespaces of its own; empty without namespaces.
        user: the user that it becomes; None keeps that of the stage.
        hides_files: leaves only its folder, Python and the libraries of the system (Landlock).
        gap: what is missing, for the log; empty if nothing is.
    """

    command: tuple[str, ...]
    user: int | None
    hides_files: bool
    gap: str


class Sandbox:
    """Runs programs, several at once, with the strongest isolation that this machine allows.

    Args:
        limits: what each program may use.
        needs_isolation: refuse to run if anything is missing.

    Raises:
        ConfigError: if no program can run here, or not with the isolation that is needed.
    """

    def __init__(self, limits: Limits, *, needs_isolation: bool) -> None:
        self._limits = limits
        self._isolation = strongest_isolation()
        gap = self._isolation.gap
        if gap and needs_isolation:
            raise ConfigError(
                f"code of responses could run here, but {gap}; run the stage on another machine or "
                "as another user, or set needs_isolation to false"
            )
        if gap:
            log.warning("code of responses runs in a sandbox, but %s", gap)

    def run(self, program: str, stdin: str = "") -> ProgramResult:
        """Run a program in an empty folder, which is deleted afterwards.

        Raises:
            SandboxError: if it could not be started.
        """
        return _run(self._isolation, self._limits, program, stdin)


@cache
def strongest_isolation() -> Isolation:
    """Return the strongest isolation with which a program runs here.

    Raises:
        ConfigError: if none does.
    """
    limits = Limits(seconds=PROBE_SECONDS, memory_mib=2048, file_mib=1, processes=64)
    reason = ""
    for isolation in _isolations():
        try:
            outcome = _run(isolation, limits, "print('ready')", "")
        except SandboxError as error:
            reason = str(error)
            continue
        if outcome.output == b"ready\n":
            return isolation
        reason = outcome.error
    raise ConfigError(f"no program can be run in a sandbox on this machine: {reason}")


def _isolations() -> Iterator[Isolation]:
    """Yield all isolations, the strongest first."""
    is_root = os.geteuid() == 0
    users = (NOBODY, None) if is_root else (None,)
    for (command, lacks), user, hides_files in product(_starters(), users, (True, False)):
        gaps = {
            "it runs as root, because no other user can read this Python": is_root and user is None,
            "it can use all files of its user": not hides_files,
            lacks: bool(lacks),
        }
        # A user namespace takes the rights of root away, apart from those of the files' owner.
        started = [word for word in command if user is None or word not in OWN_USER]
        gap = "; ".join(text for text, is_true in gaps.items() if is_true)
        yield Isolation(tuple(started), user, hides_files, gap)


def _starters() -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield commands that start a program in namespaces, and what each does not give."""
    if unshare := shutil.which("unshare"):
        command = (unshare, *OWN_USER, "--net", "--pid", "--fork", "--kill-child")
        yield (*command, "--mount-proc"), ""
        yield command, "it sees all processes"
    yield (), "the network is not off, and what it leaves behind may survive"


def _run(isolation: Isolation, limits: Limits, program: str, stdin: str) -> ProgramResult:
    with tempfile.TemporaryDirectory(prefix="ratchet-code-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)
        work = folder / "work"
        work.mkdir()
        (work / "program.py").write_text(program, errors="replace")
        (folder / "stdin").write_text(stdin, errors="replace")
        if isolation.user is not None:
            os.chown(work, isolation.user, isolation.user)
        try:
            exit_code = _exit_code(isolation, limits, folder)
        except OSError as error:
            raise SandboxError(f"{type(error).__name__}: {error}") from error
        output = (folder / "stdout").read_bytes()
        said = (folder / "stderr").read_bytes()[-SHOWN_BYTES:].decode(errors="replace").strip()
    if exit_code == sandbox_entry.FAILED:
        raise SandboxError(said)
    return ProgramResult(exit_code, output, said)


def _exit_code(isolation: Isolation, limits: Limits, folder: Path) -> int | None:
    """Run the program and return its exit code; None if it ran out of time."""
    folders = READABLE if isolation.hides_files else None
    settings = json.dumps({"limits": _limits(limits), "user": isolation.user, "folders": folders})
    entry = [sys.executable, "-I", sandbox_entry.__file__, settings, "program.py"]
    work = str(folder / "work")
    # Files instead of pipes: their size is limited, and no process that is left keeps them open.
    with (
        (folder / "stdin").open("rb") as stdin,
        (folder / "stdout").open("wb") as stdout,
        (folder / "stderr").open("wb") as stderr,
        subprocess.Popen(
            [*isolation.command, *entry],
            cwd=work,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": work, "TMPDIR": work}
            | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        ) as process,
    ):
        try:
            return process.wait(limits.seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end_group(process.pid)


def _end_group(leader: int) -> None:
    """Kill a program and what it has started; with namespaces also what left its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _limits(limits: Limits) -> dict[str, int]:
    return {
        "RLIMIT_CPU": math.ceil(limits.seconds) + 1,
        "RLIMIT_AS": limits.memory_mib * MIB,
        "RLIMIT_FSIZE": limits.file_mib * MIB,
        "RLIMIT_NPROC": limits.processes,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_CORE": 0,
    }
