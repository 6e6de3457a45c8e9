"""Stopping running jobs and flow runs at `ratchet down`, so that they can resume later."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from flows.local_services.http import post_to_prefect, request
from flows.local_services.state import ServiceRecord


def stop_ray_jobs(ray: ServiceRecord, *, grace_seconds: float) -> None:
    """Let every running job save and stop, and wait for them.

    Ray kills a job within a second after its supervisor has ended, so jobs are stopped before Ray.
    """
    deadline = time.monotonic() + grace_seconds
    signalled: set[str] = set()
    while active := _active_jobs(ray):
        for job in active - signalled:
            request("POST", f"{ray.url}/api/jobs/{job}/stop")
        signalled |= active
        if time.monotonic() > deadline:
            return
        time.sleep(0.3)


def _active_jobs(ray: ServiceRecord) -> set[str]:
    jobs: list[dict[str, Any]] = request("GET", f"{ray.url}/api/jobs/") or []
    return {
        job["submission_id"]
        for job in jobs
        if job["submission_id"] and job["status"] in ("PENDING", "RUNNING")
    }


def crash_flow_runs(prefect: ServiceRecord, *, pids: Collection[int]) -> None:
    """Mark the runs of these dead flow processes as Crashed on the server.

    A stopped worker kills its flows without a report to the server. The runs would stay Running,
    without a Retry button, until the next server detects missing heartbeats. A crashed run can be
    retried, and a run with the tag `auto-resume` resumes by itself at the next `up`.
    """
    # A pid is valid on one machine only, and only the local server has runs of one machine.
    if prefect.is_external:
        return
    states = {"state": {"type": {"any_": ["RUNNING", "PENDING"]}}}
    runs: list[dict[str, Any]] = (
        post_to_prefect(prefect.url, "flow_runs/filter", {"flow_runs": states}) or []
    )
    crashed = {
        "type": "CRASHED",
        "name": "Crashed",
        "message": "`ratchet down` stopped the worker and this run with it.",
    }
    for run in runs:
        if run["infrastructure_pid"] in {str(pid) for pid in pids}:
            path = f"flow_runs/{run['id']}/set_state"
            post_to_prefect(prefect.url, path, {"state": crashed, "force": True})
