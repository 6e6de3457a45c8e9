"""The fork server of `stages.runtime.forked_stage`: it imports once, and then forks stages.

    python -m stages.runtime.fork_server <socket>

For each stage it forks a process that watches: that one forks the stage, passes signals and the
exit code on, and kills the stage when the connection closes. So the death of the server ends no
stage. The server forks only while it is safe: it has one thread, no GPU is open, and no file of an
imported module has changed.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import site
import socket
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from stages.runtime.forked_stage import ACCEPTED, SET_BY_IMPORTS

IDLE_SECONDS = 300.0
POLL_SECONDS = 1.0
"""How soon the server ends after its socket is deleted."""
CLOCK_SECONDS = 0.02
"""The times of files may lag behind the clock by less than this."""
GPUS = ("/dev/nvidia", "/dev/kfd")


def serve(path: Path) -> list[int] | None:
    """Import, and fork stages until idle.

    Returns:
        In the process of a stage: its three standard streams and the file with its order. In the
        server: None at its end.
    """
    began = time.time() - CLOCK_SECONDS
    _import_all()
    if (child := os.fork()) == 0:  # OpenBLAS ends its threads before a fork
        os._exit(0)
    os.waitpid(child, 0)
    if problem := _problem():
        _log(f"stages cannot be forked: {problem}")
        path.with_suffix(".refused").touch()
        return None
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(64)
    listener.settimeout(POLL_SECONDS)
    if os.fork():
        os._exit(0)  # tells the process that waits for this one that the socket is ready
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how the watching processes end
    with listener:
        return _fork_stages(path, listener, began)


def _fork_stages(path: Path, listener: socket.socket, began: float) -> list[int] | None:
    files = _imported_files()
    end = time.monotonic() + IDLE_SECONDS
    while time.monotonic() < end and path.exists():
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection:
            if _has_changed(files, began) or _problem():
                return None
            connection.settimeout(POLL_SECONDS)
            try:
                _, descriptors, *_ = socket.recv_fds(connection, 1, 4)
            except OSError:  # it was killed just now
                continue
            if os.fork() == 0:
                listener.close()
                _watch_from_parent(connection, descriptors)
                return descriptors
            for descriptor in descriptors:
                os.close(descriptor)
        end = time.monotonic() + IDLE_SECONDS
    return None


def _import_all() -> None:
    """Import what the stages import, in the same order."""
    from stages.catalog import STAGES
    from stages.runtime import process  # noqa: F401 - for the stages
    from training_core.collector import exempt_present_objects, paused_collector
    from training_core.hidden_packages import tell_transformers_to_do_without

    before = dict(os.environ)
    with paused_collector():
        import_module("torch")
        tell_transformers_to_do_without()
        for name in STAGES:
            import_module(f"stages.{name}")
    SET_BY_IMPORTS.update(os.environ.items() - before.items())
    exempt_present_objects()


def _imported_files() -> Sequence[Path]:
    """Return the files of all modules, and the folders that change with each installed package."""
    names = {getattr(module, "__file__", None) or "" for module in sys.modules.values()}
    files = [Path(name) for name in (*names, *site.getsitepackages())]
    return [file for file in files if file.is_absolute()]  # some of torch's have no real file


def _has_changed(files: Sequence[Path], began: float) -> bool:
    try:
        return any(_changed_at(file.stat()) > began for file in files)
    except OSError:
        return True


def _changed_at(found: os.stat_result) -> float:
    """Return when the content changed; a file may have been replaced by one with an older date.

    For a folder other permissions are no change: PostgreSQL's package sets them at each start.
    """
    return found.st_mtime if stat.S_ISDIR(found.st_mode) else found.st_ctime


def _problem() -> str | None:
    """Return why a fork is not safe now, e.g. because another thread may hold a lock."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        return f"expected one thread after the imports, found {threads}"
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists this folder
            if (target := os.fspath(descriptor.readlink())).startswith(GPUS):
                return f"expected no open GPU after the imports, found {target}"
    return None


def _watch_from_parent(connection: socket.socket, descriptors: Sequence[int]) -> None:
    """Fork the stage, where this function returns; this process watches it and never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection.settimeout(None)
    connection.sendall(ACCEPTED)
    stage = os.fork()
    if stage == 0:
        return
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it is the stage that they ask to stop
    for descriptor in descriptors:
        os.close(descriptor)
    handle = os.pidfd_open(stage)
    while handle not in select.select([handle, connection], [], [])[0]:
        try:
            numbers = connection.recv(64)
        except ConnectionError:
            numbers = b""
        for number in numbers or [signal.SIGKILL]:
            signal.pidfd_send_signal(handle, number)
        if not numbers:
            break
    with suppress(ProcessLookupError):
        os.killpg(stage, signal.SIGKILL)  # what the stage has started and not ended
    _, status, usage = os.wait4(stage, 0)
    code, seconds = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
    _log(f"process {stage} ended with {code} after {seconds:.2f} s of CPU time")
    with suppress(OSError):
        connection.sendall(str(code).encode())
    os._exit(0)


def _log(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


def _run(descriptors: Sequence[int]) -> int:
    """Be `python -m stages <request>` in the process of the stage."""
    from stages.runtime.process import run_request
    from stages.runtime.worker_processes import die_with_parent

    os.setsid()
    die_with_parent()
    *streams, order = descriptors
    with os.fdopen(order) as file:
        request, folder, own_variables = json.load(file)
    _log(f"process {os.getpid()} runs {request}")  # in the log of the server
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.update(own_variables)  # the others are those of the server
    sys.argv[1:] = [request]
    return run_request(Path(request))


def _end(code: int) -> None:
    """End without freeing each module, which would first copy the memory that the server shares."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    code = 1  # of an uncaught error
    atexit.register(lambda: _end(code))  # the first to be registered is called last
    found = serve(Path(sys.argv[1]))
    code = 0 if found is None else _run(found)
    sys.exit(code)
