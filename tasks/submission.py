"""Attempts: find the running one, or start the next. Ids are never used twice.

job <stage>-<key12>-a1, -a2, …   <->   directory <store>/stages/<stage>/<key>/attempts/a1, a2, …
"""

from __future__ import annotations

from collections.abc import Callable

from stages.attempt import Attempt
from stages.configs.block import ResourcesConfig
from stages.files import write_text
from stages.runtime.heartbeats import is_alive
from stages.runtime.manifest import Manifest
from stages.runtime.ray_cluster import JobStatus, RayCluster
from stages.runtime.store import Request, Store


def attach_or_submit(
    store: Store, cluster: RayCluster, request: Request, resources: ResourcesConfig
) -> tuple[Attempt, bool] | Manifest:
    """Return the attempt that is working on `request`, starting one if none is.

    Two callers at once get the same attempt: only one of them can create its directory, and
    submitting an existing id does nothing.

    Returns:
        The attempt, and whether it existed already; or the manifest, if the stage has finished
        meanwhile.
    """
    while True:
        newest = next(iter(store.attempts(request.stage, request.key)), None)
        if newest is not None:
            status = cluster.info(newest.job_id).status
            if status.is_live or (status is JobStatus.UNKNOWN and is_alive(newest)):
                return newest, True
            if status is JobStatus.UNKNOWN and not newest.log.exists():
                _submit(cluster, newest, request, resources)
                return newest, True
        # Checked here, because a job that was running before may have published its manifest since.
        if manifest := store.find(request.stage, request.key):
            return manifest
        number = newest.number + 1 if newest else 1
        attempt = store.attempt(request.stage, request.key, f"a{number}")
        try:
            attempt.directory.mkdir(parents=True)
        except FileExistsError:  # another process was faster: attach to its attempt
            continue
        _submit(cluster, attempt, request, resources)
        return attempt, False


def join_waiters(store: Store, request: Request, waiter: str) -> None:
    """Record that the flow run `waiter` waits for this key."""
    directory = store.stage_dir(request.stage, request.key) / "waiters"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / waiter).touch()


def leave_waiters(store: Store, stage: str, key: str, waiter: str) -> None:
    """Record that the flow run `waiter` no longer waits for this key."""
    (store.stage_dir(stage, key) / "waiters" / waiter).unlink(missing_ok=True)


def leave_all_waiters(store: Store, waiter: str) -> None:
    """Record that the flow run `waiter` no longer waits for any key."""
    for mark in (store.root / "stages").glob(f"*/*/waiters/{waiter}"):
        mark.unlink(missing_ok=True)


def stop_abandoned(
    store: Store, cluster: RayCluster, waiter: str, is_waiting: Callable[[str], bool]
) -> list[str]:
    """Stop the jobs that only the flow run `waiter` was waiting for.

    Args:
        store: contains the marks of waiting flow runs.
        cluster: runs the jobs.
        waiter: id of the flow run that ends.
        is_waiting: whether another flow run is still alive; the marks of a dead one remain.

    Returns:
        Ids of the stopped jobs.
    """
    stopped = []
    for mark in sorted((store.root / "stages").glob(f"*/*/waiters/{waiter}")):
        mark.unlink(missing_ok=True)
        key_dir = mark.parent.parent
        stage, key = key_dir.parent.name, key_dir.name
        attempts = store.attempts(stage, key)
        if not attempts or any(is_waiting(other.name) for other in mark.parent.iterdir()):
            continue
        job_id = attempts[0].job_id
        if cluster.info(job_id).status.is_live:
            cluster.stop(job_id)
            stopped.append(job_id)
    return stopped


def stop_alone(store: Store, cluster: RayCluster, attempt: Attempt, waiter: str) -> None:
    """Stop the job of an attempt, unless another flow run than `waiter` waits for its result."""
    leave_waiters(store, attempt.stage, attempt.key, waiter)
    waiters = store.stage_dir(attempt.stage, attempt.key) / "waiters"
    if not any(waiters.iterdir()):
        cluster.stop(attempt.job_id)


def _submit(
    cluster: RayCluster, attempt: Attempt, request: Request, resources: ResourcesConfig
) -> None:
    if not attempt.request.exists():
        write_text(attempt.request, request.model_dump_json(indent=2))
    metadata = {"stage": request.stage, "step": request.step, "stage_key": request.key}
    cluster.submit(attempt.job_id, attempt.request, resources, metadata)
