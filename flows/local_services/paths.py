"""Folders and ports of the local services."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from random import SystemRandom

from flows.local_services.state import ServiceError

HOST = "127.0.0.1"
LOOPBACK_NAMES = (HOST, "localhost")
HOME_NAME = ".ratchet"
OTHER_PORTS = range(20_000, 32_000)
"""Below those of outgoing connections: such a one could take a port before its service listens."""
PORT_TRIES = 20
HELD_SECONDS = 15.0
"""A killed process may hold its ports for so long: until the last of its threads has ended."""

# A unix socket's path holds 107 characters (103 on macOS), and Ray appends
# `/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store` (65) to its folder.
_LONGEST_RAY_FOLDER = 103 - 65


def project_root() -> Path:
    """The folder that holds `flows/` and `deployments/`: the repository, or `site-packages`."""
    return Path(__file__).resolve().parents[2]


def work_folder() -> Path:
    """The folder that gets `.ratchet` and `prefect.toml`.

    It is the repository. Where Ratchet was installed as a package it is the nearest folder that has
    a `.ratchet`, starting at the current one and going up, or else the current one.
    """
    root = project_root()
    if (root / "requirements" / "cpu.txt").exists():
        return root
    here = Path.cwd()
    return next((up for up in (here, *here.parents) if (up / HOME_NAME).is_dir()), here)


def home_folder() -> Path:
    """The one folder of all state: `$RATCHET_HOME`, or `.ratchet` in the folder of the work."""
    given = os.environ.get("RATCHET_HOME")
    return Path(given).expanduser().absolute() if given else work_folder() / HOME_NAME


def store_folder(home: Path) -> Path:
    """The folder of finished stages: `$RATCHET_STORE`, or `store` in home."""
    given = os.environ.get("RATCHET_STORE")
    return Path(given).expanduser().absolute() if given else home / "store"


def log_path(home: Path, service: str) -> Path:
    """The log file with a service's output."""
    return home / "logs" / f"{service}.log"


def make_ray_folder(home: Path) -> tuple[Path, Path | None]:
    """Make a folder whose path is short enough for Ray's sockets.

    Returns:
        The folder, and the same folder again if it lies outside home and must be deleted at `down`.

    Raises:
        ServiceError: if even the system's temporary folder has too long a path.
    """
    inside = home / "ray"
    if len(str(inside)) <= _LONGEST_RAY_FOLDER:
        inside.mkdir(parents=True, exist_ok=True)
        return inside, None
    for parent in (tempfile.gettempdir(), "/tmp"):  # macOS's own temporary folder is too long
        if len(parent) + len("/ratchet-12345678") <= _LONGEST_RAY_FOLDER:
            folder = Path(tempfile.mkdtemp(prefix="ratchet-", dir=parent))
            return folder, folder
    raise ServiceError(
        f"Ray needs a folder whose path has at most {_LONGEST_RAY_FOLDER} characters, "
        f"found {inside} and {tempfile.gettempdir()}; set RATCHET_HOME to a shorter path"
    )


def own_origins(port: int) -> tuple[str, ...]:
    """Return the origins of the pages of a server at a port of this machine."""
    return tuple(f"http://{name}:{port}" for name in LOOPBACK_NAMES)


def choose_ports(preferred: tuple[int, ...]) -> tuple[int, ...]:
    """Return a free port for each preferred one: that port if it is free, else another.

    They differ, also if one is preferred twice, and are free on return.
    """
    chosen: list[int] = []
    for port in preferred:
        chosen.append(_free_port(port, chosen))
    return tuple(chosen)


def ports_again(former: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ports of a service that has ended by itself, once they are free.

    Clients know them, e.g. the flows that wait for a server. Other ports are chosen only where
    another process has taken one.
    """
    patience = time.monotonic() + HELD_SECONDS
    while (ports := choose_ports(former)) != former and time.monotonic() < patience:
        time.sleep(0.1)
    return ports


def _free_port(preferred: int, taken: Collection[int]) -> int:
    others = SystemRandom().sample(OTHER_PORTS, PORT_TRIES)
    for port in (*([preferred] if preferred else []), *others):
        with socket.socket() as sock, suppress(OSError):
            # Same option as the servers: a port in TIME_WAIT from a stopped service is free.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if port not in taken:
                sock.bind((HOST, port))
                return port
    raise ServiceError(
        f"no port is free of {PORT_TRIES} that were tried between {OTHER_PORTS[0]} and "
        f"{OTHER_PORTS[-1]}; stop what listens there"
    )
