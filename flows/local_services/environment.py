"""Environment variables of the services and of their clients."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from flows.local_services.paths import project_root, store_folder
from flows.local_services.state import ServiceRecords

TOKEN_VARIABLE = "RATCHET_SERVICES_TOKEN"
SERVICE_VARIABLE = "RATCHET_SERVICE"
"""In the environment of every process of a service, the service's name."""

# Variable with each service's address. If the user sets it, it is that of a team's server.
ADDRESS_VARIABLES = {
    "prefect": "PREFECT_API_URL",
    "mlflow": "MLFLOW_TRACKING_URI",
    "ray": "RAY_ADDRESS",
}


def client_environment(home: Path, records: ServiceRecords) -> dict[str, str]:
    """Return the environment variables for a program that uses the services of a home."""
    addresses = {
        variable: records.services[name].url
        for name, variable in ADDRESS_VARIABLES.items()
        if name in records.services
    }
    return {**addresses, **_settings(home, records)}


def server_environment(home: Path, records: ServiceRecords) -> dict[str, str]:
    """Return the whole environment of a process that `up` starts, without services' addresses."""
    inherited = {k: v for k, v in os.environ.items() if k not in ADDRESS_VARIABLES.values()}
    return {
        **inherited,
        **_settings(home, records),
        # Ray jobs and flows use the same Python interpreter as this process.
        "PATH": _prepend(str(Path(sys.executable).parent), os.environ.get("PATH")),
        # flows, tasks and stages are importable from any working directory.
        "PYTHONPATH": _prepend(str(project_root()), os.environ.get("PYTHONPATH")),
        # Clients of loopback addresses must not go through a company's proxy.
        "NO_PROXY": _prepend("127.0.0.1,localhost", os.environ.get("NO_PROXY"), ","),
        "no_proxy": _prepend("127.0.0.1,localhost", os.environ.get("no_proxy"), ","),
        "PYTHONUNBUFFERED": "1",
        TOKEN_VARIABLE: records.token,
    }


def worker_environment(home: Path, records: ServiceRecords) -> dict[str, str]:
    """Return the environment of the worker and of every flow that it runs."""
    return {**server_environment(home, records), **client_environment(home, records)}


def _settings(home: Path, records: ServiceRecords) -> dict[str, str]:
    results = str(home / "prefect" / "results")
    settings = {
        "RATCHET_HOME": str(home),
        "RATCHET_ROOT": str(project_root()),
        "RATCHET_STORE": str(store_folder(home)),
        # PREFECT_HOME does not apply to results; without these they are written to ~/.prefect.
        "PREFECT_RESULTS_LOCAL_STORAGE_PATH": results,
        "PREFECT_LOCAL_STORAGE_PATH": results,
        # The time between two tries doubles: eleven last for an hour and more. With the default of
        # five retries, a flow fails after 76 s without a server.
        "PREFECT_CLIENT_MAX_RETRIES": "11",
        # What a server answers whose PostgreSQL cannot be reached.
        "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500",
        # A flow counts as dead after three missing beats; 30 s is the shortest interval in Prefect.
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "RAY_USAGE_STATS_ENABLED": "0",
        "DO_NOT_TRACK": "1",
    }
    # A team's server may need a login, so the user's profile and token stay accessible.
    if not _is_external(records, "prefect"):
        settings["PREFECT_HOME"] = str(home / "prefect")
    if not _is_external(records, "ray"):
        # Otherwise Ray requires a token if ~/.ray/auth_token exists, and clients get 401.
        settings["RAY_AUTH_MODE"] = "disabled"
        # Not a cluster of several machines: only this setting keeps Ray on loopback. Without it Ray
        # replaces --node-ip-address 127.0.0.1 by the machine's external address, and GCS, raylet
        # and agents listen on all interfaces. Drivers need the same setting.
        settings["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    return settings


def _is_external(records: ServiceRecords, name: str) -> bool:
    record = records.services.get(name)
    return record is not None and record.is_external


def _prepend(first: str, rest: str | None, separator: str = os.pathsep) -> str:
    return f"{first}{separator}{rest}" if rest else first
