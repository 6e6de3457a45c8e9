"""The heartbeat of an attempt: the file that its process rewrites, and whether that process lives.

A process of this machine is looked up in the process table, so that a clock that jumps makes no
live process dead and no dead one alive. Of a process on another machine only the time in the file
tells.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.attempt import Attempt
from stages.files import write_json
from training_core.errors import IntegrityError
from training_core.strict_json import read_object

HEARTBEAT_SECONDS = 5.0
STALE_SECONDS = 6 * HEARTBEAT_SECONDS
"""If a heartbeat from another machine is older than this, its process is dead."""
_REMEDY = "delete it; a live process writes a new one within seconds"


class Heartbeat:
    """Rewrites `heartbeat.json` every few seconds while the process lives."""

    def __init__(self, attempt: Attempt) -> None:
        self._path = attempt.heartbeat
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _beat(self) -> None:
        begun = time.monotonic()
        own = {"host": socket.gethostname(), "place": this_place(), **identity_of(os.getpid())}
        while True:
            lived = {"seconds": time.monotonic() - begun, "time": time.time()}
            write_json(self._path, {**own, **lived})
            if self._done.wait(HEARTBEAT_SECONDS):
                return


def is_alive(attempt: Attempt) -> bool:
    """Whether the process of an attempt lives, for any status from the cluster.

    Raises:
        IntegrityError: if the file is not a heartbeat.
    """
    try:
        beat = read_object(attempt.heartbeat, remedy=_REMEDY)
    except FileNotFoundError:
        return False
    if not isinstance(beat.get("time"), float | int):
        raise IntegrityError(
            f"{attempt.heartbeat}: expected a number as `time`, found {beat!r:.80}; {_REMEDY}"
        )
    if (place := this_place()) and beat.get("place") == place:
        return _is_here(beat)
    return time.time() - beat["time"] < STALE_SECONDS


def _is_here(beat: Mapping[str, Any]) -> bool:
    pid, started = beat.get("pid"), beat.get("started")
    if not isinstance(pid, int) or started is None:
        return False
    return identity_of(pid)["started"] == started


def this_place() -> str:
    """Return what all processes share that see the same process table; "" where it is unknown.

    Not the name of the host: containers may share it and number their processes separately.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def identity_of(pid: int) -> dict[str, int | None]:
    """Return pid and start of a process; the start is None for one that has ended.

    The start is in clock ticks since the machine's, so a later process with this pid has another.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return {"pid": pid, "started": None}
    return {"pid": pid, "started": None if fields[0] in "ZX" else int(fields[19])}
