"""`ratchet up`, step by step: adopt external servers, start services, wait until they answer."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from flows.local_services.definitions import SERVICES, LaunchInputs, Service
from flows.local_services.environment import ADDRESS_VARIABLES, SERVICE_VARIABLE
from flows.local_services.health import external_answers
from flows.local_services.paths import choose_ports, log_path, ports_again
from flows.local_services.processes import (
    family_of,
    listens,
    remains_of,
    root_of,
    start,
    stop,
)
from flows.local_services.state import (
    ServiceError,
    ServiceRecord,
    ServiceRecords,
    save_records,
)
from stages.safe_text import redacted

_LOG_LINES_SHOWN = 20


def adopt_external(records: ServiceRecords) -> ServiceRecords:
    """Use the servers that environment variables name instead of starting local ones.

    Raises:
        ServiceError: if a named server does not answer, or a local one still runs.
    """
    for name, variable in ADDRESS_VARIABLES.items():
        known = records.services.get(name)
        url = os.environ.get(variable)
        if url and (known is None or known.is_external or known.url != url):
            records = records.with_record(_external(name, variable, url, known))
        elif known and known.is_external:
            # The variable is no longer set, so the server is no longer used.
            others = {k: v for k, v in records.services.items() if k != name}
            records = records.model_copy(update={"services": others})
    return records


def _external(name: str, variable: str, url: str, known: ServiceRecord | None) -> ServiceRecord:
    title = SERVICES[name].title
    if known and root_of(known):
        raise ServiceError(
            f"{variable} is {redacted(url)}, but $RATCHET_HOME runs its own {title} at "
            f"{known.url}; unset {variable}, or run `ratchet down` first"
        )
    if not url.startswith("http"):
        raise ServiceError(
            f"{variable} should be the http address of a {title} server, found {redacted(url)!r}; "
            "correct it, or unset it to have one started here"
        )
    record = ServiceRecord(name=name, url=url.rstrip("/"), is_external=True)
    if not external_answers(record):
        raise ServiceError(
            f"{variable} is {redacted(url)}, but nothing answers there; "
            "start that server, or unset the variable to have one started here"
        )
    return record


def start_missing(
    home: Path,
    records: ServiceRecords,
    *,
    names: list[str],
    ray_cpus: int,
    worker_limit: int,
    report: Callable[[str, str], None],
) -> ServiceRecords:
    """Start the named services that do not run, all at once, and wait until all answer.

    Args:
        home: the folder of all state.
        records: the recorded services, including external ones.
        names: services to start.
        ray_cpus: number of CPUs that Ray may assign.
        worker_limit: number of flow runs that the worker may have at once.
        report: called with a service's name and its activity.

    Raises:
        ServiceError: if a service ended or did not answer in time. The others keep running.
    """
    todo = [SERVICES[name] for name in names]
    deadlines: dict[str, float] = {}
    while todo:
        for service in list(todo):
            if service.needs and any(other.name == service.needs for other in todo):
                continue
            if service.name not in deadlines:
                records = _ensure_process(home, records, service, ray_cpus, worker_limit)
                deadlines[service.name] = time.monotonic() + service.deadline_seconds
                report(service.name, "starting")
            if _lost_its_port(records.services[service.name], deadlines[service.name]):
                records = _as_stopped(records, service.name)  # its port is worth no wait
                records = _ensure_process(home, records, service, ray_cpus, worker_limit)
                report(service.name, "starting at another port")
            if _is_up(records.services[service.name], service, deadlines[service.name]):
                todo.remove(service)
                report(service.name, "up")
        time.sleep(0.2 if todo else 0)
    return records


def _ensure_process(
    home: Path, records: ServiceRecords, service: Service, ray_cpus: int, worker_limit: int
) -> ServiceRecords:
    known = records.services.get(service.name)
    if known and known.is_external:
        return records
    upstream = _upstream(records) if service.needs else {}
    if known and root_of(known):
        if known.upstream == upstream:
            return records
        stop(family_of(known), grace_seconds=10)  # it uses old addresses of servers
    ports = _ports_of(known, service, records.token)
    launch = service.launch(LaunchInputs(home, records, ports, ray_cpus, worker_limit))
    log = log_path(home, service.name)
    pid, created = start(
        launch.command,
        environment={**launch.environment, SERVICE_VARIABLE: service.name},
        folder=launch.folder,
        log=log,
    )
    records = records.with_record(
        ServiceRecord(
            name=service.name,
            url=launch.url,
            ports=ports,
            pid=pid,
            created=created,
            log=log,
            scratch=launch.scratch,
            upstream=upstream,
            limit={"ray": ray_cpus, "worker": worker_limit}.get(service.name),
        )
    )
    # Saved at once, so that a killed `up` leaves no process without a record.
    save_records(home, records)
    return records


def _ports_of(known: ServiceRecord | None, service: Service, token: str) -> tuple[int, ...]:
    """Choose the ports of a service, after removing what an earlier process of it has left."""
    if known is None:
        return choose_ports(service.preferred_ports)
    _clear_away(known, token)
    if known.pid is None or not known.ports:  # it was stopped, or never had one
        return choose_ports(known.ports or service.preferred_ports)
    return ports_again(known.ports)


def _as_stopped(records: ServiceRecords, name: str) -> ServiceRecords:
    return records.with_record(records.services[name].model_copy(update={"pid": None}))


def _clear_away(dead: ServiceRecord, token: str) -> None:
    """Remove what a service left that ended by itself: its other processes and its folder."""
    stop(remains_of(dead.name, token), grace_seconds=5)
    if dead.scratch is not None:
        shutil.rmtree(dead.scratch, ignore_errors=True)


def _upstream(records: ServiceRecords) -> dict[str, str]:
    return {name: records.services[name].url for name in ADDRESS_VARIABLES}


def _lost_its_port(record: ServiceRecord, deadline: float) -> bool:
    """Whether it ended because another process, e.g. of another home, took its port first."""
    if record.is_external or root_of(record) or time.monotonic() > deadline:
        return False
    return choose_ports(record.ports) != record.ports


def _is_up(record: ServiceRecord, service: Service, deadline: float) -> bool:
    # If it lost its port, another process may answer there.
    if record.is_external or (service.is_ready(record) and (not record.ports or listens(record))):
        return True
    if root_of(record) is None and not _lost_its_port(record, deadline):
        raise _failure(record, service, "ended while it started")
    if time.monotonic() > deadline:
        stop(family_of(record), grace_seconds=5)
        seconds = service.deadline_seconds
        raise _failure(record, service, f"did not answer at {record.url} within {seconds:.0f} s")
    return False


def _failure(record: ServiceRecord, service: Service, what: str) -> ServiceError:
    log = record.log
    lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:] if log else []
    return ServiceError(
        f"{service.title} {what}. Its last words, from {log}:\n"
        + "\n".join(f"    {redacted(line)}" for line in lines)
        + "\nCorrect the cause and run `ratchet up` again; what has started stays up."
    )
