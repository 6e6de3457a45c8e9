"""Stage processes as Ray jobs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from stages.configs.block import ResourcesConfig
from stages.runtime.worker_processes import IN_RAY_JOB
from stages.safe_text import redacted
from training_core.errors import ConfigError, UnreachableError

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

LOCAL_DASHBOARD = "http://127.0.0.1:8265"
FORWARDED = ("HF_HOME", "HF_HUB_OFFLINE")
"""Variables that a job gets from the flow. No secrets: Ray logs them. Nodes set HF_TOKEN."""


class JobStatus(StrEnum):
    """State of a job; after a restart of the head node all earlier jobs are `UNKNOWN`."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    UNKNOWN = "UNKNOWN"

    @property
    def is_live(self) -> bool:
        """Whether the job is waiting or running."""
        return self in (JobStatus.PENDING, JobStatus.RUNNING)


@dataclass(frozen=True)
class JobInfo:
    """Information from the cluster about a job.

    Attributes:
        status: state of the job.
        exit_code: exit code of its process, if it ended by itself.
        message: the cluster's explanation.
    """

    status: JobStatus
    exit_code: int | None = None
    message: str = ""


class RayCluster:
    """A Ray cluster, through its Jobs API.

    Args:
        address: address of the dashboard, e.g. `http://head:8265`; None reads RAY_ADDRESS.
    """

    def __init__(self, address: str | None = None) -> None:
        self.address = address or os.environ.get("RAY_ADDRESS") or LOCAL_DASHBOARD
        if not self.address.startswith(("http://", "https://")):
            raise ConfigError(
                "RAY_ADDRESS must be the dashboard's address, as in http://head:8265 "
                f"(jobs go through it), found '{redacted(self.address)}'"
            )

    def submit(
        self, job_id: str, request: Path, resources: ResourcesConfig, metadata: Mapping[str, str]
    ) -> None:
        """Submit the stage process for `request`; do nothing if the id of the job exists already.

        Raises:
            UnreachableError: if the cluster cannot be reached.
        """
        # With several workers each reserves its own resources; the process that starts them waits.
        is_single_process = resources.num_workers == 1
        memory = resources.memory_gib if is_single_process else None
        try:
            self._client.submit_job(
                # `exec`: what Ray kills is then the stage's process, and not only a shell above it.
                entrypoint=f"exec python -m stages {shlex.quote(str(request))}",
                submission_id=job_id,
                entrypoint_num_cpus=resources.num_cpus if is_single_process else 0,
                entrypoint_num_gpus=(resources.num_gpus or None) if is_single_process else None,
                entrypoint_memory=int(memory * 2**30) if memory else None,
                runtime_env={"env_vars": _job_environment(resources)},
                metadata=dict(metadata),
            )
        except RuntimeError as error:
            if "already exists" not in str(error):
                raise self._unreachable(error) from None
        except OSError as error:
            raise self._unreachable(error) from None

    def info(self, job_id: str) -> JobInfo:
        """Return the state of a job.

        Raises:
            UnreachableError: if the cluster cannot be reached.
        """
        try:
            details = self._client.get_job_info(job_id)
        except RuntimeError as error:
            if "404" in str(error) or "does not exist" in str(error):
                return JobInfo(JobStatus.UNKNOWN, message="the cluster does not know this job")
            raise self._unreachable(error) from None
        except OSError as error:
            raise self._unreachable(error) from None
        status = JobStatus(str(details.status.value))
        return JobInfo(status, details.driver_exit_code, details.message or "")

    def stop(self, job_id: str) -> None:
        """Send SIGTERM to a job; do nothing if it has ended or does not exist."""
        if self.info(job_id).status.is_live:
            self._client.stop_job(job_id)

    @cached_property
    def _client(self) -> JobSubmissionClient:
        from ray.job_submission import JobSubmissionClient

        try:
            return JobSubmissionClient(self.address)
        except (RuntimeError, OSError) as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> UnreachableError:
        """Return the error to raise `from None`: Ray's text has the address with its password."""
        told = redacted(f"the Ray cluster at {self.address} did not answer: {error}")
        return UnreachableError(told)


def _job_environment(resources: ResourcesConfig) -> dict[str, str]:
    threads = str(max(1, int(resources.num_cpus)))
    return {
        IN_RAY_JOB: "1",
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": threads,
        # On a small machine threads that wait actively would slow down another job.
        "OMP_WAIT_POLICY": "PASSIVE",
        **{name: os.environ[name] for name in FORWARDED if name in os.environ},
    }
