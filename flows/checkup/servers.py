"""Do the servers that runs need answer, and do their clocks agree with this one?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx

from flows.checkup.finding import Finding, good, problem, warning
from flows.local_services.environment import ADDRESS_VARIABLES, client_environment
from flows.local_services.http import TIMEOUT_SECONDS
from flows.local_services.state import load_records, page_at

CLOCK_SECONDS = 5
"""Difference from which schedules and heartbeats go wrong."""
START = "`ratchet up` starts local services; for servers of a team see docs/remote.md"


def check_servers(home: Path) -> Iterator[Finding]:
    """Ask every server: those of the environment, or else those of `ratchet up`."""
    records = load_records(home)
    local = client_environment(home, records) if records.services else {}
    known = {**local, **os.environ}
    for service, variable in ADDRESS_VARIABLES.items():
        if not (address := known.get(variable)):
            yield warning(f"no address of {service} ({variable})", START)
            continue
        yield from _check_server(service, address)


def _check_server(service: str, address: str) -> Iterator[Finding]:
    where = f"{service} at {page_at(address)}"
    try:
        answer = httpx.get(address.removesuffix("/api"), timeout=TIMEOUT_SECONDS)
    except (httpx.TransportError, httpx.InvalidURL) as error:
        yield problem(f"{where} does not answer ({type(error).__name__})", START)
        return
    yield good(f"{where} answers")
    if not (dates := answer.headers.get_list("date")):
        return
    there = parsedate_to_datetime(dates[-1]).replace(tzinfo=UTC)  # HTTP's dates are in GMT
    apart = abs((datetime.now(UTC) - there).total_seconds())
    if apart > CLOCK_SECONDS:
        yield problem(
            f"the clock of {service} and of this machine are {apart:,.0f} s apart",
            "synchronise both clocks (chrony or systemd-timesyncd)",
        )
