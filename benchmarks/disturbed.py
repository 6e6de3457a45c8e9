"""A lifecycle on services of its own whose processes can be killed, and what that cost.

For `benchmarks.chaos` and the drills in tests/lifecycle.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from flows.local_services.environment import (
    ADDRESS_VARIABLES,
    SERVICE_VARIABLE,
    client_environment,
)
from flows.local_services.http import request
from flows.local_services.processes import (
    flow_processes,
    is_live,
    orphans_of,
    remains_of,
    root_of,
)
from flows.local_services.state import ServiceRecord, load_records
from stages.attempt import Attempt
from stages.runtime.store import Store
from tasks.run_steps import steps_of_run

ROOT = Path(__file__).resolve().parents[1]
RATCHET = (sys.executable, "-m", "flows.cli.main")
SERVICES = ("ray", "prefect", "mlflow", "worker")
QUICK = {"rollouts": {"engine": "transformers"}}
SHORT = {"training": {"epochs": 1, "save_every_steps": 5}}
OVERRIDES: Mapping[str, Mapping[str, Any]] = {
    "sft": {
        "data": {"size": 2000},
        "eval_data": {"size": 64},
        "training": {"epochs": 2, "save_every_steps": 10},
    },
    "reward_model": {
        "data": {"size": 1000},
        "eval_data": {"size": 64},
        "admission": {"required": False},  # it learns too little for the bar
        **SHORT,
    },
    "rejection_sampling": {"prompts": {"size": 128}, **QUICK},
    "rejection_sft": {"training": {"save_every_steps": 5}},
    "preference_pairs": {"prompts": {"size": 128}, **QUICK},
    "dpo": SHORT,
    "ppo": {
        "steps": 20,
        "prompts_per_step": 16,
        "save_every_steps": 2,
        "rollouts": {"engine": "transformers", "placement": {"name": "colocated", "engines": 1}},
    },
    "evaluation": {"prompts": {"size": 64}, **QUICK},
    "retries": {"limit": 60, "delay_seconds": [0.5]},
}
"""Changes to the preset `tiny`: less work, more checkpoints, and a rollout engine of its own."""
STEPS = (
    *("sft", "reward_model", "rejection_sampling", "rejection_sft", "preference_pairs_1"),
    *("dpo_1", "ppo", "evaluation"),
)


class Machine:
    """The services of a home, and hands that kill.

    Args:
        home: the folder of all state; its path should be short.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        inherited = {k: v for k, v in os.environ.items() if k not in ADDRESS_VARIABLES.values()}
        inherited.pop("RATCHET_STORE", None)
        self._environment = {**inherited, "RATCHET_HOME": str(home), "COLUMNS": "200"}
        self.store = Store(home / "store")

    def ratchet(self, *arguments: str) -> str:
        """Type a command.

        Raises:
            RuntimeError: if it fails; with its output.
        """
        done = subprocess.run(
            (*RATCHET, *arguments),
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"ratchet {arguments}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout

    def start(self, force: Sequence[str] = ()) -> str:
        """Start the lifecycle and return the id of its flow run."""
        changes = [f"{block}={json.dumps(value)}" for block, value in OVERRIDES.items()]
        forced = [word for step in force for word in ("--force", step)]
        out = self.ratchet("run", "tiny", *changes, *forced, "--detach")
        found = re.search(r"^id +(\S{36})", out, re.MULTILINE)
        if not found:
            raise RuntimeError(out)
        return found[1]

    # ------------------------------------------------------------------ what is there

    def record(self, service: str) -> ServiceRecord:
        """Return the newest record of a service."""
        return load_records(self.home).services[service]

    def state_of(self, run_id: str) -> dict[str, Any] | None:
        """Return the flow run as the server knows it; None while it does not answer."""
        return request("GET", f"{self.record('prefect').url}/flow_runs/{run_id}")

    def environment(self) -> dict[str, str]:
        """Return the addresses of the services, as environment variables."""
        return client_environment(self.home, load_records(self.home))

    def processes(self) -> list[psutil.Process]:
        """Return every live process that the services or their children have started."""
        return [each for each in orphans_of(load_records(self.home).token) if is_live(each)]

    def role(self, name: str) -> list[psutil.Process]:
        """Return the live processes of a role: a service, `flow`, `stage`, `engine` or a name."""
        if name in (*SERVICES, "supervisor"):
            root = root_of(self.record(name))
            return [root] if root else []
        if name == "flow":
            found = [each for of_run in flow_processes().values() for each in of_run]
            return [each for each in found if self._own(each)]
        if name == "stage":
            return [process for attempt in self.attempts() if (process := _process_of(attempt))]
        if name == "engine":
            found = [child for each in self.role("stage") for child in _children(each)]
            return [each for each in found if "resource_tracker" not in " ".join(_words(each))]
        return [each for each in self.processes() if Path(_words(each)[0]).name == name]

    def attempts(self) -> list[Attempt]:
        """Return all attempts at all stages, by their folders."""
        folders = (self.store.root / "stages").glob("*/*/attempts/a[0-9]*")
        return [Attempt(folder) for folder in sorted(folders)]

    def digests_of(self, run_id: str) -> dict[str, str]:
        """Return the digest of the result of each step of a run."""
        found = {}
        for name, step in steps_of_run(self.store, run_id).items():
            manifest = self.store.find(step.stage, step.key)
            found[name] = manifest.digest if manifest else ""
        return found

    def waiters(self) -> list[Path]:
        """Return the marks of runs that wait for a stage."""
        return list((self.store.root / "stages").glob("*/*/waiters/*"))

    def live_jobs(self) -> list[str]:
        """Return the ids of the jobs that Ray has not ended."""
        jobs = request("GET", f"{self.record('ray').url}/api/jobs/") or []
        return [job["submission_id"] for job in jobs if job["status"] in ("PENDING", "RUNNING")]

    def _own(self, process: psutil.Process) -> bool:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            token = load_records(self.home).token
            return is_live(process) and token in process.environ().values()
        return False

    # ------------------------------------------------------------------ what is done to it

    def kill(self, role: str) -> list[int]:
        """Send SIGKILL to all processes of a role, and return their pids."""
        return _kill(self.role(role))

    def lose_power(self) -> None:
        """Send SIGKILL to everything, until nothing is left."""
        while found := self.processes():
            _kill(found)
            psutil.wait_procs(found, timeout=1)

    def remains(self) -> list[psutil.Process]:
        """Return the processes of services that have no root."""
        records = load_records(self.home)
        rootless = [name for name in SERVICES if not root_of(records.services[name])]
        return [each for name in rootless for each in remains_of(name, records.token)]


@contextmanager
def services(home: Path, *options: str) -> Iterator[Machine]:
    """Start services and deploy; stop them at the end, whatever is left of them."""
    machine = Machine(home)
    try:
        machine.ratchet("up", *options)
        machine.ratchet("deploy")
        yield machine
    finally:
        machine.ratchet("down")


def wait_for(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Wait until `condition` returns something true, and return that."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.2)
    return found


@dataclass(frozen=True)
class Redone:
    """The work of an attempt that was killed, and that the next attempt did again.

    Attributes:
        job: of the attempt.
        steps: optimizer steps, or rounds of PPO, after the checkpoint that the next one used.
        interval: steps between two checkpoints; 0 if the stage has none and starts again.
        seconds: from that checkpoint, or from the start, to the last sign of life.
    """

    job: str
    steps: int
    interval: int
    seconds: float


def redone(attempts: Sequence[Attempt]) -> list[Redone]:
    """Return what was done twice in these attempts, which are those of one run."""
    found = []
    for attempt in attempts:
        following = attempt.directory.with_name(f"a{attempt.number + 1}")
        if following in [each.directory for each in attempts]:
            found.append(_redone(attempt, Attempt(following)))
    return found


def _redone(attempt: Attempt, following: Attempt) -> Redone:
    text = following.log.read_text() if following.log.exists() else ""
    resumed = re.search(r"resumed at step (\d+)", text)
    start = int(resumed[1]) if resumed else 0
    lines = attempt.metrics.read_text().splitlines() if attempt.metrics.exists() else []
    whole = [json.loads(line) for line in lines if line.endswith("}")]
    later = [line for line in whole if line["step"] > start]
    began = attempt.request.stat().st_mtime if attempt.request.exists() else time.time()
    at_start = [line["time"] for line in whole if line["step"] == start]
    ends = [*(line["time"] for line in later), *at_start, _last_beat(attempt) or began]
    config = json.loads(attempt.request.read_text())["config"] if attempt.request.exists() else {}
    interval = config.get("save_every_steps") or (config.get("training") or {}).get(
        "save_every_steps", 0
    )
    seconds = max(0.0, max(ends) - (at_start[0] if at_start else began))
    return Redone(attempt.job_id, len(later), interval or 0, seconds)


def _last_beat(attempt: Attempt) -> float | None:
    with suppress(FileNotFoundError):
        return json.loads(attempt.heartbeat.read_text())["time"]
    return None


def _process_of(attempt: Attempt) -> psutil.Process | None:
    """Return the live process of an attempt, by its heartbeat."""
    with suppress(FileNotFoundError, psutil.NoSuchProcess, psutil.AccessDenied):
        process = psutil.Process(json.loads(attempt.heartbeat.read_text())["pid"])
        if is_live(process) and SERVICE_VARIABLE in process.environ():
            return process if process.create_time() > attempt.request.stat().st_mtime - 1 else None
    return None


def _children(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return [each for each in process.children(recursive=True) if is_live(each)]
    return []


def _words(process: psutil.Process) -> list[str]:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return process.cmdline() or [process.name()]
    return [""]


def _kill(processes: Sequence[psutil.Process]) -> list[int]:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    return [process.pid for process in processes]
