"""The task that runs any stage: reuse it, or submit it and follow it until its manifest exists.

    key -> manifest? then `Reused`
        -> attach or submit -> follow -> manifest? then a ref -> else classify the end

Only the manifest decides whether a stage is done, not the job's status or Prefect's cache. Prefect
retries this task as often as `flows/recipe/run.py` says, after the errors of `tasks/failures.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run
from prefect.states import Completed

from stages.attempt import Attempt
from stages.catalog import stage_of
from stages.configs.block import StageConfig
from stages.configs.stage_record import StageRecord
from stages.runtime.manifest import Manifest
from stages.runtime.ray_cluster import JobInfo
from stages.runtime.sources import digests_of_sources
from stages.runtime.stage_key import stage_key
from stages.runtime.store import Request, Store
from tasks.budget import Allowance, BudgetWatch, hours_of
from tasks.connections import Connections
from tasks.failures import failure_of, is_transient
from tasks.follow import CurveMirror, RunLogger, follow
from tasks.outage import Outage
from tasks.refs import StageRef, ref_of
from tasks.run_steps import RunStep, note_step
from tasks.submission import attach_or_submit, join_waiters, leave_waiters, stop_alone
from tasks.this_run import this_flow_run
from training_core.errors import BudgetError, ConfigError, IntegrityError, UnreachableError


@dataclass(frozen=True)
class StageJob:
    """A stage to run.

    Attributes:
        step: its name in the flow; several steps may use one stage.
        config: config of the stage; its class determines the stage.
        inputs: finished stages by role.
        lifecycle: name of the experiment and the registered models.
        is_forced: run it again even if it is done.
        allowances: what the budgets of the flow run leave for it.
        since: Unix time at which the flow run began, for the budgets.
        outage_seconds: how long it waits for a cluster that does not answer.
    """

    step: str
    config: StageConfig
    inputs: Mapping[str, StageRef]
    lifecycle: str
    is_forced: bool = False
    allowances: tuple[Allowance, ...] = ()
    since: float = 0.0
    outage_seconds: float = 900.0

    @property
    def spec(self) -> StageRecord:
        """The record of the stage that the config belongs to."""
        return stage_of(self.config)


def request_for(job: StageJob, connections: Connections) -> Request:
    """Compute the stage key and the request for the stage's process.

    Raises:
        ConfigError: if an input that the stage requires is missing, or an input is given that it
            does not accept.
        IntegrityError: if an input is no longer in the store.
    """
    spec = job.spec
    try:
        spec.require_roles(job.inputs)
    except ConfigError as error:
        raise ConfigError(f"step '{job.step}': {error}") from error
    for role, ref in job.inputs.items():
        _require_kind(job, role, ref)
    digests = {role: ref.digest for role, ref in job.inputs.items()} | digests_of_sources(
        job.config
    )
    return Request(
        stage=spec.name,
        step=job.step,
        key=stage_key(spec, job.config, digests),
        config=job.config.model_dump(mode="json"),
        inputs={role: str(_directory(ref, connections)) for role, ref in job.inputs.items()},
        input_digests=digests,
        parents={role: ref.key for role, ref in job.inputs.items()},
    )


@task(
    name="stage", task_run_name="{job.step}", cache_policy=NO_CACHE, retry_condition_fn=is_transient
)
def stage_task(job: StageJob, connections: Connections) -> Any:
    """Return the `StageRef` of the finished stage; run it if it is not done.

    Raises:
        TransientError: if a retry may succeed; Prefect retries it.
        RatchetError: if a person must fix the cause.
    """
    log = get_run_logger()
    store, request = connections.store, request_for(job, connections)
    begun = RunStep(step=job.step, stage=request.stage, key=request.key)
    note_step(store, str(flow_run.id), begun)
    if job.is_forced:
        store.set_aside(request.stage, request.key, once_for=str(flow_run.id))
    if manifest := store.find(request.stage, request.key):
        # An earlier process of this run may have waited for it.
        leave_waiters(store, request.stage, request.key, str(flow_run.id))
        ref = ref_of(manifest, job.step, is_reused=True)
        return Completed(name="Reused", message=f"{job.step} is done: key {ref.key[:12]}", data=ref)
    manifest = _run(job, request, connections, log)
    return ref_of(manifest, job.step, is_reused=False)


def _run(job: StageJob, request: Request, connections: Connections, log: RunLogger) -> Manifest:
    waiter = str(flow_run.id)
    _budget_watch(job, request, connections.store).look(None)
    join_waiters(connections.store, request, waiter)
    outage = Outage(job.outage_seconds, log)
    while True:
        try:
            end = _attend(job, request, connections, log, outage)
        except UnreachableError as error:
            outage.wait(error)
        else:
            break
    leave_waiters(connections.store, request.stage, request.key, waiter)
    if isinstance(end, Manifest):
        return end
    manifest = connections.store.find(request.stage, request.key)
    if manifest is None:
        raise failure_of(*end)
    return manifest


def _attend(
    job: StageJob, request: Request, connections: Connections, log: RunLogger, outage: Outage
) -> Manifest | tuple[Attempt, JobInfo]:
    """Find or start the attempt that works on the request, and follow it to its end."""
    resources = job.config.resources
    found = attach_or_submit(connections.store, connections.cluster, request, resources)
    outage.end()
    if isinstance(found, Manifest):
        return found
    attempt, was_there = found
    log.info("%s job %s", "attached to" if was_there else "submitted", attempt.job_id)
    mirror = CurveMirror(connections.registry, attempt, request, job.lifecycle, this_flow_run())
    try:
        info = follow(
            attempt,
            connections.cluster,
            mirror,
            log,
            step=job.step,
            resources=resources,
            watch=_budget_watch(job, request, connections.store).look,
        )
    except BudgetError:
        stop_alone(connections.store, connections.cluster, attempt, str(flow_run.id))
        raise
    return attempt, info


def _budget_watch(job: StageJob, request: Request, store: Store) -> BudgetWatch:
    def worked() -> float:
        return hours_of(store.attempts(request.stage, request.key), job.since)

    return BudgetWatch(job.step, job.allowances, worked)


def _require_kind(job: StageJob, role: str, ref: StageRef) -> None:
    kind = job.spec.kind_of(role)
    if ref.kind != kind:
        raise ConfigError(
            f"step '{job.step}': expected a {kind} as input '{role}', "
            f"found the {ref.kind} of step '{ref.step}'; correct the step's inputs"
        )


def _directory(ref: StageRef, connections: Connections) -> Path:
    manifest = connections.store.find_digest(ref.stage, ref.key, ref.digest)
    if manifest is None:
        raise IntegrityError(
            f"the result of step '{ref.step}' ({ref.stage} {ref.key[:12]}) is gone from the store; "
            "run the flow again: that step will be made anew"
        )
    return connections.store.artifact_dir(manifest)
