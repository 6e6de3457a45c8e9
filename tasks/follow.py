"""Follow a running attempt.

Copies its log to the run's log, its progress to an artifact and its curves to MLflow.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from logging import Logger, LoggerAdapter
from pathlib import Path
from typing import cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact

from stages.attempt import Attempt
from stages.configs.block import ResourcesConfig
from stages.runtime.heartbeats import is_alive
from stages.runtime.ray_cluster import JobInfo, JobStatus, RayCluster
from stages.runtime.store import Request
from tasks.registry import FlowRun, Registry
from training_core.errors import IntegrityError, TransientError, UnreachableError
from training_core.strict_json import read_object

POLL_SECONDS = 0.5
MIRROR_SECONDS = 3.0
REWRITTEN = "delete it; the stage writes it again"
PENDING_SECONDS = 10.0
"""If a job waits longer than this for the cluster, the log states it."""

RunLogger = Logger | LoggerAdapter[Logger]


def follow(
    attempt: Attempt,
    cluster: RayCluster,
    mirror: CurveMirror,
    log: RunLogger,
    *,
    step: str,
    resources: ResourcesConfig,
    watch: Callable[[StepProgress | None], None],
) -> JobInfo:
    """Wait until the attempt has ended.

    Polls are short, because Prefect can interrupt only between them.

    Args:
        attempt: the running or waiting attempt.
        cluster: runs its job.
        mirror: copies its curves to MLflow.
        log: the run's log.
        step: name of the progress artifact.
        resources: resources of the job, for the log message if it has to wait.
        watch: looks at the progress while the job runs.

    Returns:
        The last information from the cluster about the job.

    Raises:
        UnreachableError: if the cluster does not answer and the process does not live.
        RatchetError: of `watch`.
    """
    tail = LogTail(attempt.log)
    progress = ProgressBar(attempt.progress, step)
    notice = PendingNotice(attempt.job_id, resources)
    while True:
        info = _poll(attempt, cluster)
        notice.look(info, time.monotonic(), log)
        for line in tail.new_lines():
            log.info("%s", line)
        progress.refresh()
        mirror.refresh(log)
        if not info.status.is_live:
            return info
        watch(progress.shown)
        time.sleep(POLL_SECONDS)


def _poll(attempt: Attempt, cluster: RayCluster) -> JobInfo:
    """Return the state of the job; RUNNING if only its heartbeat shows that it is alive."""
    try:
        info = cluster.info(attempt.job_id)
    except UnreachableError:
        if is_alive(attempt):
            return JobInfo(JobStatus.RUNNING)
        raise
    if info.status is JobStatus.UNKNOWN and is_alive(attempt):
        return JobInfo(JobStatus.RUNNING)
    return info


class PendingNotice:
    """Logs once that a job waits: the cluster may never have enough resources for it."""

    def __init__(self, job_id: str, resources: ResourcesConfig) -> None:
        self._job_id, self._resources = job_id, resources
        self._since: float | None = None
        self._is_said = False

    def look(self, info: JobInfo, now: float, log: RunLogger) -> None:
        """Log if the job is still pending after `PENDING_SECONDS`; `now` is in seconds."""
        if info.status is not JobStatus.PENDING or self._is_said:
            return
        self._since = now if self._since is None else self._since
        if now - self._since > PENDING_SECONDS:
            requested = self._resources.model_dump(exclude_none=True)
            log.warning(
                "job %s waits for the cluster; it asks for %s. %s",
                self._job_id,
                ", ".join(f"{name}: {amount:g}" for name, amount in requested.items()),
                info.message,
            )
            self._is_said = True


class LogTail:
    """Reads the lines that were appended to a file since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_lines(self) -> list[str]:
        """Return complete new lines."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole, _, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + 1 if whole else 0
        return whole.decode(errors="replace").splitlines()


@dataclass(frozen=True)
class StepProgress:
    """How far an attempt is: steps or items `done` of `total`, and its key metric as text."""

    done: int
    total: int
    text: str


def read_progress(path: Path) -> StepProgress | None:
    """Read `progress.json`; None if the attempt has not written it yet.

    Raises:
        IntegrityError: if the file is something else.
    """
    try:
        now = read_object(path, remedy=REWRITTEN)
    except FileNotFoundError:
        return None
    if not {"done", "total", "text"} <= now.keys():
        raise IntegrityError(
            f"{path}: expected `done`, `total` and `text`, found {now!r:.80}; {REWRITTEN}"
        )
    return StepProgress(now["done"], now["total"], now["text"])


class ProgressBar:
    """Shows `progress.json` as a Prefect progress artifact."""

    def __init__(self, path: Path, step: str) -> None:
        self._path = path
        self._key = f"{step.replace('_', '-')}-progress"
        self._artifact: UUID | None = None
        self.shown: StepProgress | None = None

    def refresh(self) -> None:
        """Update the artifact if the file has changed."""
        now = read_progress(self._path)
        if now is None or now == self.shown:
            return
        percent = 100.0 * now.done / max(1, now.total)
        if self._artifact is None:
            made = create_progress_artifact(percent, key=self._key, description=now.text)
            self._artifact = cast(UUID, made)  # a coroutine only if the caller is one
        else:
            text = f"{now.done} of {now.total}: {now.text}"
            update_progress_artifact(self._artifact, percent, description=text)
        self.shown = now


class CurveMirror:
    """Copies `metrics.jsonl` into the stage's MLflow run as it grows; an outage only delays it."""

    def __init__(
        self,
        registry: Registry,
        attempt: Attempt,
        request: Request,
        lifecycle: str,
        flow_run: FlowRun,
    ) -> None:
        self._registry, self._request, self._lifecycle = registry, request, lifecycle
        self._flow_run = flow_run
        self._attempt, self._path = attempt, attempt.metrics
        self._next = 0.0
        self._run_id: str | None = None

    def refresh(self, log: RunLogger) -> None:
        """Copy new lines every few seconds; if MLflow does not answer, log that and retry later."""
        if time.monotonic() < self._next or not self._path.exists():
            return
        try:
            self._run_id = self._run_id or self._find_run()
            self._registry.runs.mirror_metrics(self._run_id, self._path)
            self._next = time.monotonic() + MIRROR_SECONDS
        except TransientError as error:
            log.warning("curves wait in %s: %s", self._path.name, error)
            self._next = time.monotonic() + 10 * MIRROR_SECONDS

    def _find_run(self) -> str:
        request = self._request
        return self._registry.runs.run_for(
            self._lifecycle,
            request.stage,
            request.step,
            request.key,
            attempt=self._attempt.name,
            started_at=self._attempt.request.stat().st_mtime,
            flow_run=self._flow_run,
        )
