"""Runs whose process and worker are gone, so that nobody else tells the server that they ended.

A worker reports the end of its own runs. After the worker was killed, e.g. by a loss of power, a
run would stay Running, Pending or Cancelling: Prefect finds it 90 s later at best, and a pending
one never.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from flows.local_services.environment import worker_environment
from flows.local_services.health import POOL
from flows.local_services.http import post_to_prefect, request
from flows.local_services.paths import project_root
from flows.local_services.processes import flow_processes, root_of, stop
from flows.local_services.state import ServiceRecord, ServiceRecords

AUTO_RESUME_TAG = "auto-resume"
RESUMES = "ratchet: crashed runs resume"
"""Name of the automation that a person may pause; then no run is resumed here, either."""
ENDING_SECONDS = 45.0
"""A worker that cancels a run of its own needs up to 30 s, and the hooks of the flow some more."""
_ACTIVE = ("RUNNING", "PENDING", "CANCELLING")

log = logging.getLogger("ratchet.supervisor")


class LostRuns:
    """Finds lost runs on the local Prefect server: marks them Crashed, resumes or cancels them.

    Args:
        home: the folder of all state.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._cancelling: dict[str, subprocess.Popen[bytes]] = {}

    def look(self, records: ServiceRecords) -> None:
        """Do what has to be done now; nothing if server or worker are not of this machine."""
        prefect, worker = (records.services.get(name) for name in ("prefect", "worker"))
        if not prefect or prefect.is_external or not worker or root_of(worker) is None:
            return
        runs = self._active(prefect)
        if not runs:
            return
        processes = flow_processes()
        for run in runs:
            own = processes.get(run["id"], [])
            if run["state"]["type"] == "CANCELLING":
                self._look_at_cancelling(records, worker, run, own)
            elif not own and _begun_at(run) < _first_run_of(worker):
                self._crash(prefect, run)

    def _active(self, prefect: ServiceRecord) -> list[dict[str, Any]]:
        chosen = {
            "flow_runs": {"state": {"type": {"any_": list(_ACTIVE)}}},
            "work_pools": {"name": {"any_": [POOL]}},
        }
        return post_to_prefect(prefect.url, "flow_runs/filter", chosen) or []

    def _crash(self, prefect: ServiceRecord, run: dict[str, Any]) -> None:
        now = request("GET", f"{prefect.url}/flow_runs/{run['id']}")
        if not now or now["state_id"] != run["state_id"]:
            return  # its process has reported an end before it left
        reason = "Its process has ended without a report, and so has the worker that started it."
        crashed = {"type": "CRASHED", "name": "Crashed", "message": reason}
        self._set(prefect, run, crashed, force=True)
        if AUTO_RESUME_TAG in run["tags"] and self._resumes(prefect):
            again = {"type": "SCHEDULED", "name": "AwaitingRetry", "message": "Resumed; was lost."}
            self._set(prefect, run, again, force=False)

    def _set(
        self, prefect: ServiceRecord, run: dict[str, Any], state: dict[str, str], *, force: bool
    ) -> None:
        answer = post_to_prefect(
            prefect.url, f"flow_runs/{run['id']}/set_state", {"state": state, "force": force}
        )
        done = answer["status"] if answer else "the server does not answer"
        log.warning("run %s (%s): %s: %s", run["name"], run["id"], state["name"], done)

    def _resumes(self, prefect: ServiceRecord) -> bool:
        named = {"automations": {"name": {"any_": [RESUMES]}}}
        found = post_to_prefect(prefect.url, "automations/filter", named) or []
        return any(automation["enabled"] for automation in found)

    def _look_at_cancelling(
        self,
        records: ServiceRecords,
        worker: ServiceRecord,
        run: dict[str, Any],
        own: list[psutil.Process],
    ) -> None:
        """End a cancelled run whose worker cannot, because it was started by an earlier one."""
        asked_at = datetime.fromisoformat(run["state"]["timestamp"]).timestamp()
        is_orphan = bool(own) and not any(_is_child(process, worker) for process in own)
        is_left = not own and (
            asked_at < _first_run_of(worker) or time.time() - asked_at > ENDING_SECONDS
        )
        ending = self._cancelling.get(run["id"])
        if not (is_orphan or is_left) or (ending and ending.poll() is None):
            return
        log.warning("run %s (%s) has no worker; cancelling it", run["name"], run["id"])
        stop(own, grace_seconds=5)
        self._cancelling[run["id"]] = subprocess.Popen(
            (sys.executable, "-m", "flows.recipe.cancellation", run["id"]),
            cwd=project_root(),
            env=worker_environment(self._home, records),
            stdin=subprocess.DEVNULL,
        )


def _begun_at(run: dict[str, Any]) -> float:
    return datetime.fromisoformat(run["state"]["timestamp"]).timestamp()


def _first_run_of(worker: ServiceRecord) -> float:
    """Return a Unix time before which a worker has started no run; it needs seconds to import.

    The creation time of a process is up to a second too early.
    """
    return (worker.created or 0.0) + 1.0


def _is_child(process: psutil.Process, worker: ServiceRecord) -> bool:
    try:
        return any(parent.pid == worker.pid for parent in process.parents())
    except psutil.NoSuchProcess:
        return True  # it has just ended; the next look sees what its worker has made of that
