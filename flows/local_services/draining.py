"""What `ratchet down` says to running jobs and flow runs, so that they can go on later."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from flows.local_services.http import ask
from flows.local_services.state import ServiceRecord


def stop_ray_jobs(ray: ServiceRecord, *, grace_seconds: float) -> None:
    """Let every running job save and stop, and wait for them.

    Ray kills a job within a second once its supervisor is gone, so jobs are stopped before Ray is.
    """
    deadline = time.monotonic() + grace_seconds
    asked: set[str] = set()
    while active := _active_jobs(ray):
        for job in active - asked:
            ask("POST", f"{ray.url}/api/jobs/{job}/stop")
        asked |= active
        if time.monotonic() > deadline:
            return
        time.sleep(0.3)


def _active_jobs(ray: ServiceRecord) -> set[str]:
    jobs: list[dict[str, Any]] = ask("GET", f"{ray.url}/api/jobs/") or []
    return {
        job["submission_id"]
        for job in jobs
        if job["submission_id"] and job["status"] in ("PENDING", "RUNNING")
    }


def crash_flow_runs(prefect: ServiceRecord, *, pids: Collection[int]) -> None:
    """Tell the server that these flow processes are dead.

    A stopped worker kills its flows and says nothing: the runs would stay Running, with no Retry
    button, until the next server misses their heartbeats. A crashed run can be retried, and one
    that is tagged `auto-resume` goes on by itself at the next `up`.
    """
    # A pid means something on one machine only, and only our own server has runs of one machine.
    if prefect.is_external:
        return
    states = {"state": {"type": {"any_": ["RUNNING", "PENDING"]}}}
    runs: list[dict[str, Any]] = (
        ask("POST", f"{prefect.url}/flow_runs/filter", {"flow_runs": states}) or []
    )
    crashed = {
        "type": "CRASHED",
        "name": "Crashed",
        "message": "`ratchet down` stopped the worker and this run with it.",
    }
    for run in runs:
        if run["infrastructure_pid"] in {str(pid) for pid in pids}:
            url = f"{prefect.url}/flow_runs/{run['id']}/set_state"
            ask("POST", url, {"state": crashed, "force": True})
