"""The only door to Ray: stage processes as Ray jobs, and the workers of one of them."""

from __future__ import annotations

import logging
import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from threading import Event
from typing import Any

from stages.configs.block import ResourcesConfig
from stages.runtime.exit_codes import ExitCode
from stages.runtime.worker_processes import IN_RAY_JOB, free_port, rank_environment, start_worker
from training_core.errors import ConfigError, StoppedError, TransientError

log = logging.getLogger("ratchet")

LOCAL_DASHBOARD = "http://127.0.0.1:8265"
FORWARDED = ("HF_HOME", "HF_HUB_OFFLINE")
"""Environment of the flow that a job needs too. No secrets: Ray logs it; HF_TOKEN is the nodes'."""


class JobStatus(StrEnum):
    """Where a job is in its life; `UNKNOWN` is what a restarted head says of every job."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    UNKNOWN = "UNKNOWN"

    @property
    def is_live(self) -> bool:
        """Whether the job may still do something."""
        return self in (JobStatus.PENDING, JobStatus.RUNNING)


@dataclass(frozen=True)
class JobInfo:
    """What the cluster says of a job.

    Attributes:
        status: where it is.
        exit_code: of its process, once it has ended by itself.
        message: the cluster's explanation.
    """

    status: JobStatus
    exit_code: int | None = None
    message: str = ""


class RayCluster:
    """A Ray cluster, through its Jobs API.

    Args:
        address: of the dashboard, as in `http://head:8265`; None reads RAY_ADDRESS.
    """

    def __init__(self, address: str | None = None) -> None:
        self.address = address or os.environ.get("RAY_ADDRESS") or LOCAL_DASHBOARD
        if not self.address.startswith(("http://", "https://")):
            raise ConfigError(
                "RAY_ADDRESS must be the dashboard's address, as in http://head:8265 "
                f"(jobs go through it), found '{self.address}'"
            )

    def submit(
        self, job_id: str, request: Path, resources: ResourcesConfig, metadata: Mapping[str, str]
    ) -> None:
        """Submit the stage process for `request`; a job that has this id already is left alone.

        Raises:
            TransientError: if the cluster cannot be reached.
        """
        # Several workers reserve for themselves; the process that starts them only waits.
        is_single_process = resources.num_workers == 1
        memory = resources.memory_gib if is_single_process else None
        try:
            self._client.submit_job(
                entrypoint=f"python -m stages {shlex.quote(str(request))}",
                submission_id=job_id,
                entrypoint_num_cpus=resources.num_cpus if is_single_process else 0,
                entrypoint_num_gpus=(resources.num_gpus or None) if is_single_process else None,
                entrypoint_memory=int(memory * 2**30) if memory else None,
                runtime_env={"env_vars": _job_environment(resources)},
                metadata=dict(metadata),
            )
        except RuntimeError as error:
            if "already exists" not in str(error):
                raise self._unreachable(error) from error
        except OSError as error:
            raise self._unreachable(error) from error

    def info(self, job_id: str) -> JobInfo:
        """Say where a job is.

        Raises:
            TransientError: if the cluster cannot be reached.
        """
        try:
            details = self._client.get_job_info(job_id)
        except RuntimeError as error:
            if "404" in str(error) or "does not exist" in str(error):
                return JobInfo(JobStatus.UNKNOWN, message="the cluster does not know this job")
            raise self._unreachable(error) from error
        except OSError as error:
            raise self._unreachable(error) from error
        status = JobStatus(str(details.status.value))
        return JobInfo(status, details.driver_exit_code, details.message or "")

    def stop(self, job_id: str) -> None:
        """Ask a job to stop (SIGTERM); one that has ended, or that nobody knows, is left alone."""
        if self.info(job_id).status.is_live:
            self._client.stop_job(job_id)

    @cached_property
    def _client(self) -> Any:
        from ray.job_submission import JobSubmissionClient

        try:
            return JobSubmissionClient(self.address)
        except (RuntimeError, OSError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> TransientError:
        return TransientError(f"the Ray cluster at {self.address} did not answer: {error}")


class RayWorkerGroup:
    """Workers of one stage on the cluster whose job this process is, each in a bundle of its own.

    Ray places them and restarts nothing.

    Args:
        request: for `python -m stages`.
        resources: of each worker.
        stop: set when nobody waits for the stage any more; the crew is then not started.
    """

    def __init__(self, request: Path, resources: ResourcesConfig, stop: Event) -> None:
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        on_sigterm = signal.getsignal(signal.SIGTERM)
        ray.init(address="auto", log_to_driver=True)
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray puts its own in place, which exits at once
        bundle = _bundle(resources)
        self._group = placement_group([bundle] * resources.num_workers, strategy="PACK")
        while not self._group.wait(timeout_seconds=1):
            if stop.is_set():
                raise StoppedError("stopped while waiting for room on the cluster")
        actor: Any = ray.remote(max_restarts=0, max_task_retries=0)(WorkerActor)
        self._actors: list[Any] = [
            actor.options(
                num_cpus=bundle["CPU"],
                num_gpus=bundle.get("GPU", 0),
                memory=bundle.get("memory"),
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=rank
                ),
            ).remote()
            for rank in range(resources.num_workers)
        ]
        address, port = ray.get(self._actors[0].place.remote())
        ray.get(
            [
                # Ray shows each worker its own GPUs alone, so that the first is always its own.
                k.start.remote(
                    str(request),
                    str(Path.cwd()),
                    rank_environment(rank, resources.num_workers, address, port, local_rank=0),
                )
                for rank, k in enumerate(self._actors)
            ]
        )

    def poll(self) -> Sequence[int | None]:
        """Exit codes so far; a worker whose node is lost is TRANSIENT."""
        return [self._ask(actor, "poll", lost=int(ExitCode.TRANSIENT)) for actor in self._actors]

    def send(self, number: int) -> None:
        """Send a signal to every worker that lives."""
        for actor in self._actors:
            self._ask(actor, "send", number)

    def close(self) -> None:
        """Kill whoever is left and free the bundles."""
        import ray
        from ray.util.placement_group import remove_placement_group

        self.send(signal.SIGKILL)
        for actor in self._actors:
            ray.kill(actor)
        remove_placement_group(self._group)
        ray.shutdown()

    @staticmethod
    def _ask(actor: Any, question: str, *args: Any, lost: Any = None) -> Any:
        import ray
        from ray.exceptions import RayActorError

        try:
            return ray.get(getattr(actor, question).remote(*args))
        except RayActorError as error:
            log.warning("a worker is lost: %s", error)
            return lost


class WorkerActor:
    """Runs in a bundle and holds one worker's process."""

    def __init__(self) -> None:
        self._process: Any = None

    def place(self) -> tuple[str, int]:
        """Address of this machine and a free port on it."""
        import ray

        return ray.util.get_node_ip_address(), free_port()

    def start(self, request: str, folder: str, environment: Mapping[str, str]) -> None:
        """Start the worker where the job runs."""
        os.chdir(folder)
        self._process = start_worker(Path(request), environment)

    def poll(self) -> int | None:
        """Its exit code, or None."""
        return self._process.poll()

    def send(self, number: int) -> None:
        """Send it a signal."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)


def _bundle(resources: ResourcesConfig) -> dict[str, float]:
    wanted = {
        "CPU": resources.num_cpus,
        "GPU": resources.num_gpus,
        "memory": (resources.memory_gib or 0) * 2**30,
    }
    return {name: amount for name, amount in wanted.items() if amount}


def _job_environment(resources: ResourcesConfig) -> dict[str, str]:
    threads = str(max(1, int(resources.num_cpus)))
    return {
        IN_RAY_JOB: "1",
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": threads,
        # Threads that spin while they wait starve the other job on a small machine.
        "OMP_WAIT_POLICY": "PASSIVE",
        **{name: os.environ[name] for name in FORWARDED if name in os.environ},
    }
