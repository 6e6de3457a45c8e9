"""Checks whether a service answers."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import httpx

from flows.local_services.http import TIMEOUT_SECONDS, post_to_prefect, request
from flows.local_services.state import ServiceRecord

POOL = "ratchet"
WORKER = "ratchet-local"


def prefect_answers(record: ServiceRecord) -> bool:
    """Whether the server's database is migrated and its API is up."""
    return request("GET", f"{record.url}/health") is not None


def mlflow_answers(record: ServiceRecord) -> bool:
    """Whether the tracking server is up."""
    return request("GET", f"{record.url}/health") is not None


def ray_answers(record: ServiceRecord) -> bool:
    """Whether the cluster can list jobs, which is the last part of it to start."""
    return request("GET", f"{record.url}/api/jobs/") is not None


def worker_polls(record: ServiceRecord) -> bool:
    """Whether the worker of this record, not an earlier one of that name, reports to the server."""
    path = f"work_pools/{POOL}/workers/filter"
    workers: list[dict[str, Any]] = post_to_prefect(record.url, path, {}) or []
    beats = [worker["last_heartbeat_time"] for worker in workers if worker["name"] == WORKER]
    started = record.created or 0.0
    return any(datetime.fromisoformat(beat).timestamp() >= started for beat in beats)


def external_answers(record: ServiceRecord) -> bool:
    """Whether any server answers; a request for a login by a team's server counts as an answer."""
    try:
        httpx.get(record.url, timeout=TIMEOUT_SECONDS)
    except (httpx.TransportError, httpx.InvalidURL):
        return False
    return True
