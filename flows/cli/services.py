"""`ratchet up`, `status`, `down` and `env`: all that Ratchet needs, running on this machine.

A Prefect server, an MLflow server, a Ray head and a Prefect worker, on loopback, with their state
in one folder (`$RATCHET_HOME`, by default `.ratchet` in the repository), and a supervisor, which
starts again those that end. A team's own servers are used instead of ours where PREFECT_API_URL,
MLFLOW_TRACKING_URI or RAY_ADDRESS name them.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from rich.table import Table
from rich.text import Text

from flows.cli.terminal import Terminal
from flows.local_services.definitions import SERVICES, Service, default_worker_limit
from flows.local_services.environment import client_environment
from flows.local_services.health import external_answers
from flows.local_services.paths import home_folder
from flows.local_services.prefect_toml import forget_prefect_of, point_prefect_at
from flows.local_services.processes import root_of
from flows.local_services.progress import Progress
from flows.local_services.shutdown import purge as purge_state
from flows.local_services.shutdown import stop_services, stop_supervisor
from flows.local_services.startup import adopt_external, start_missing
from flows.local_services.state import (
    ServiceError,
    ServiceRecord,
    ServiceRecords,
    exclusive,
    load_records,
    save_records,
)


def up(
    home: Path | None = None,
    *,
    ray_cpus: int | None = None,
    with_worker: bool = True,
    worker_limit: int | None = None,
) -> ServiceRecords:
    """Start every service that is not running yet; harmless where all are.

    Args:
        home: the folder of all state; `$RATCHET_HOME` or `.ratchet` if not given.
        ray_cpus: CPUs that Ray may give to jobs; all of this machine's if not given.
        with_worker: whether to start a worker. Without one no flow runs here; a team's server
            may have workers elsewhere.
        worker_limit: flow runs that the worker may have at once; `default_worker_limit` of this
            machine's CPUs if not given. A worker that runs already keeps its limit.

    Returns:
        What runs now, and where.

    Raises:
        ServiceError: a service ended or did not answer in time; the message shows its log.
    """
    home = home or home_folder()
    cores = os.cpu_count() or 1
    names = [name for name in SERVICES if with_worker or name != "worker"]
    with exclusive(home), Progress(names) as progress:
        records = adopt_external(load_records(home))
        save_records(home, records)
        records = start_missing(
            home,
            records,
            names=names,
            ray_cpus=ray_cpus or cores,
            worker_limit=worker_limit or default_worker_limit(cores),
            report=progress.report,
        )
        save_records(home, records)
        prefect = records.services["prefect"]
        if not prefect.is_external and not point_prefect_at(home, prefect.url):
            progress.say('prefect.toml is not ours and stays; use eval "$(ratchet env)" instead')
    return records


def down(home: Path | None = None, *, purge: bool = False) -> None:
    """Stop every service that `up` started, with running flows and Ray jobs.

    Args:
        home: as for `up`.
        purge: delete the databases, logs, artifacts and the store in home too, finished stages
            included.
    """
    home = home or home_folder()
    if not home.is_dir():
        return
    stop_supervisor(load_records(home))  # it may hold the lock while it starts a service again
    with exclusive(home), Progress(list(SERVICES)) as progress:
        save_records(home, stop_services(load_records(home), report=progress.report))
        forget_prefect_of(home)
        if purge:
            purge_state(home)


def status(home: Path | None = None) -> bool:
    """Show each service's state, the address of its page, its pid and its log.

    Returns:
        Whether all are up.
    """
    home = home or home_folder()
    records = load_records(home)
    table = Table("service", "state", "address", "pid", "log", title=f"in {home}")
    states: list[str] = []
    for service in SERVICES.values():
        record = records.services.get(service.name)
        state = state_of(service, record)
        states.append(state)
        log = f"logs/{record.log.name}" if record and record.log else ""
        cells = (record.page, str(record.pid or ""), log) if record else ("",) * 3
        table.add_row(service.title, Text(state, "green" if state in _WELL else "red"), *cells)
    Terminal().print(table)
    return all(state in _WELL for state in states)


_WELL = ("up", "external")


def state_of(service: Service, record: ServiceRecord | None) -> str:
    """One word: up, external, down, dead (it ended by itself) or silent (it does not answer).

    Words of explanation follow if the supervisor no longer tries to start a service.
    """
    if record is None or (record.pid is None and not record.is_external):
        return "down"
    if record.is_external:
        return "external" if external_answers(record) else "silent"
    if root_of(record) is None:
        tried = f"dead; not started again after {len(record.restarts)} tries, see its log"
        return tried if record.is_given_up else "dead"
    return "up" if service.is_ready(record) else "silent"


def env(home: Path | None = None) -> None:
    """Print `export` lines, for `eval "$(ratchet env)"`.

    The only output that may contain a password, because programs need the whole address.
    """
    for variable, value in service_environment(home).items():
        sys.stdout.write(f"export {variable}={shlex.quote(value)}\n")


def service_environment(home: Path | None = None) -> dict[str, str]:
    """What a program needs in its environment to talk to the running services.

    Raises:
        ServiceError: no service has been started in this home.
    """
    home = home or home_folder()
    records = load_records(home)
    if not records.services:
        raise ServiceError(f"no services are known in {home}; run `ratchet up` first")
    return client_environment(home, records)
