"""The table of services: how each one is started, and the check that it is ready."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flows.local_services import health
from flows.local_services.environment import server_environment, worker_environment
from flows.local_services.paths import HOST, make_ray_folder, own_origins, project_root
from flows.local_services.processes import root_of
from flows.local_services.state import ServiceRecord, ServiceRecords
from stages.runtime.forked_stage import FOLDER_VARIABLE

DATABASE_VARIABLE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"


@dataclass(frozen=True)
class LaunchInputs:
    """The inputs from which the command of a service is made.

    Attributes:
        home: the folder of all state.
        records: the services that are recorded so far.
        ports: free ports, one for each preferred port of the service.
        ray_cpus: number of CPUs that Ray may assign.
        worker_limit: number of flow runs that the worker may have at once.
    """

    home: Path
    records: ServiceRecords
    ports: tuple[int, ...]
    ray_cpus: int
    worker_limit: int


@dataclass(frozen=True)
class Launch:
    """The command of a service, and its future address."""

    command: tuple[str, ...]
    environment: dict[str, str]
    folder: Path
    url: str
    scratch: Path | None = None


@dataclass(frozen=True)
class Service:
    """One row of the table.

    Attributes:
        name: name in `services.json` and of the log.
        title: name for people.
        preferred_ports: default ports of the program, used if they are free.
        launch: builds the command.
        is_ready: whether the service answers at the address of its record.
        needs: the service that must be ready before this one starts.
        deadline_seconds: longest time that a start may take.
    """

    name: str
    title: str
    preferred_ports: tuple[int, ...]
    launch: Callable[[LaunchInputs], Launch]
    is_ready: Callable[[ServiceRecord], bool]
    needs: str | None = None
    deadline_seconds: float = 180.0


def default_worker_limit(cores: int) -> int:
    """Return how many flow runs a worker on this machine may have at once.

    Each is a process of about 400 MB that needs 5 s of CPU time to start. Then it mostly waits for
    its Ray jobs, and keeps its place meanwhile, so there may be more of them than cores. Too few
    places cannot block the runs that have one: a flow run waits for jobs, never for another run.
    """
    return max(8, 2 * cores)


def _launch_prefect(order: LaunchInputs) -> Launch:
    (port,) = order.ports
    folder = order.home / "prefect"
    sqlite = f"sqlite+aiosqlite:///{folder}/prefect.db"
    environment = server_environment(order.home, order.records) | {
        DATABASE_VARIABLE: os.environ.get(DATABASE_VARIABLE, sqlite),
        # If two requests write at once, SQLite refuses some writes of a poll. The next poll repeats
        # them, but the library logs 120 lines each time, i.e. 300 MB a day. Prefect's loggers have
        # their own levels and are not affected.
        "PREFECT_LOGGING_ROOT_LEVEL": "CRITICAL",
        # The page must use the server that it came from, for any profile of the user.
        "PREFECT_UI_API_URL": f"http://{HOST}:{port}/api",
        # By default any web page may use the API, because the server has no login.
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(own_origins(port)),
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
    }
    module = (sys.executable, "-m", "flows.local_services.prefect_server")
    return Launch(
        command=(*module, "--host", HOST, "--port", str(port)),
        environment=environment,
        folder=folder,
        url=f"http://{HOST}:{port}/api",
    )


def _launch_mlflow(order: LaunchInputs) -> Launch:
    (port,) = order.ports
    folder = order.home / "mlflow"
    environment = server_environment(order.home, order.records) | {
        # Saves eight processes; Ratchet uses none of their features.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    command = (
        *(sys.executable, "-m", "tasks.registry.mlflow_server", "--host", HOST),
        *("--port", str(port), "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{folder}/mlflow.db"),
        # Clients share this disk: they write artifacts themselves, so a checkpoint is never
        # uploaded and `models:/…` loads in place.
        *("--no-serve-artifacts", "--default-artifact-root", (folder / "artifacts").as_uri()),
    )
    return Launch(command, environment, folder, url=f"http://{HOST}:{port}")


def _launch_ray(order: LaunchInputs) -> Launch:
    dashboard, gcs, client, agent = order.ports
    folder, scratch = make_ray_folder(order.home)
    command = (
        *(_tool("ray"), "start", "--head", "--block", "--disable-usage-stats"),
        *("--node-ip-address", HOST, "--port", str(gcs), "--ray-client-server-port", str(client)),
        "--no-monitor",  # the process of the autoscaler, which would have no nodes to add
        *("--dashboard-host", HOST, "--dashboard-port", str(dashboard)),
        *("--dashboard-agent-listen-port", str(agent)),
        # Any free port, so that two clusters on one machine do not collide.
        *("--min-worker-port", "0", "--max-worker-port", "0"),
        *("--temp-dir", str(folder), "--num-cpus", str(order.ray_cpus)),
    )
    fork_servers = folder / "fork-servers"  # a short path, too
    shutil.rmtree(fork_servers, ignore_errors=True)  # of an earlier Ray
    environment = server_environment(order.home, order.records) | {
        FOLDER_VARIABLE: os.environ.get(FOLDER_VARIABLE, str(fork_servers)),
        # Time in which a stopped job may save its state before it is killed; the default is 3 s.
        "RAY_JOB_STOP_WAIT_TIME_S": "30",
        # There is no other node for the jobs; with draining `down` would wait half a minute.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    }
    return Launch(command, environment, project_root(), f"http://{HOST}:{dashboard}", scratch)


def _launch_worker(order: LaunchInputs) -> Launch:
    command = (
        *(_tool("prefect"), "--no-prompt", "worker", "start", "--type", "process"),
        *("--pool", health.POOL, "--name", health.WORKER, "--install-policy", "never"),
        *("--limit", str(order.worker_limit)),
    )
    return Launch(
        command=command,
        environment=worker_environment(order.home, order.records),
        folder=project_root(),
        url=order.records.services["prefect"].url,
    )


def _launch_supervisor(order: LaunchInputs) -> Launch:
    return Launch(
        command=(sys.executable, "-m", "flows.local_services.supervisor"),
        environment=server_environment(order.home, order.records),
        folder=project_root(),
        url="",
    )


def _supervisor_lives(record: ServiceRecord) -> bool:
    return root_of(record) is not None


def _tool(name: str) -> str:
    """Return the path of a command in this environment; PATH is not used."""
    return str(Path(sys.executable).parent / name)


# In the order in which they start. Ports: Ray's dashboard, GCS, client server, dashboard agent.
SERVICES: dict[str, Service] = {
    service.name: service
    for service in (
        Service("ray", "Ray", (8265, 6379, 10001, 52365), _launch_ray, health.ray_answers),
        Service("prefect", "Prefect", (4200,), _launch_prefect, health.prefect_answers),
        Service("mlflow", "MLflow", (5000,), _launch_mlflow, health.mlflow_answers),
        Service("worker", "Worker", (), _launch_worker, health.worker_polls, needs="prefect"),
        Service("supervisor", "Supervisor", (), _launch_supervisor, _supervisor_lives),
    )
}
