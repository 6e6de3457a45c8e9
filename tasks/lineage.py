"""Prefect tasks that mirror finished stages into the registry and move the champion."""

from __future__ import annotations

from collections.abc import Mapping

from prefect import get_run_logger, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event
from prefect.runtime import flow_run

from tasks import ledger
from tasks.connections import Connections
from tasks.evidence import Verdict, as_table
from tasks.failures import is_transient
from tasks.refs import StageRef
from tasks.versions import ModelVersionRef
from training_core.errors import ConflictError, IntegrityError

REGISTRY_RETRIES: list[float] = [2, 10, 30, 60, 120]


@task(
    name="register",
    task_run_name="register {ref.step}",
    cache_policy=NO_CACHE,
    retries=len(REGISTRY_RETRIES),
    retry_delay_seconds=REGISTRY_RETRIES,
    retry_condition_fn=is_transient,
)
def register(
    ref: StageRef, connections: Connections, lifecycle: str, *, is_candidate: bool = False
) -> StageRef:
    """Make the finished stage a model version (or a finished run, for data), once.

    Returns:
        The ref, with its model version where it has one.

    Raises:
        IntegrityError: if the stage's files are no longer what its manifest says.
        TransientError: while MLflow cannot be reached; nothing is lost meanwhile.
    """
    manifest = connections.store.find(ref.stage, ref.key)
    if manifest is None:
        raise IntegrityError(
            f"the files of step '{ref.step}' are damaged or gone; run the flow again"
        )
    version = connections.registry.register(
        manifest,
        lifecycle=lifecycle,
        step=ref.step,
        flow_run_id=str(flow_run.id),
        is_candidate=is_candidate,
    )
    rows = [{"metric": name, "value": f"{value:.4g}"} for name, value in ref.metrics.items()]
    create_table_artifact(rows, key=f"{ref.step.replace('_', '-')}-metrics", description=ref.step)
    return ref.model_copy(update={"model_version": version.version}) if version else ref


@task(
    name="promote",
    task_run_name="promote {name}/{version}",
    cache_policy=NO_CACHE,
    retries=len(REGISTRY_RETRIES),
    retry_delay_seconds=REGISTRY_RETRIES,
    retry_condition_fn=is_transient,
)
def promote(
    connections: Connections,
    name: str,
    version: int,
    *,
    based_on: int,
    verdict: Verdict,
    who: str,
    why: str,
) -> bool:
    """Write the verdict down; if the evidence passed, make the version the champion.

    Returns:
        Whether the champion moved.

    Raises:
        ConflictError: if somebody else moved it meanwhile; judge again against the new one.
    """
    log = get_run_logger()
    create_markdown_artifact(as_table(verdict), key="promotion", description=f"{name}/{version}")
    if not verdict.passed:
        log.warning("%s/%d stays a candidate: the evidence is not enough", name, version)
        return False
    entry = ledger.promote(
        connections.registry, name, version, based_on=based_on, evidence=verdict, who=who, why=why
    )
    emit_event(
        "ratchet.model.promoted",
        resource={"prefect.resource.id": f"ratchet.model.{name}"},
        payload={"name": name, "version": version, "entry": entry.number},
    )
    log.info("%s/%d is champion (entry %d of the ledger)", name, version, entry.number)
    return True


def champion_of(connections: Connections, name: str) -> tuple[int, ModelVersionRef | None]:
    """Return the number of the ledger's last valid entry (0 for none), and the champion."""
    entry = ledger.champion(connections.registry, name)
    if entry is None:
        return 0, None
    ledger.heal(connections.registry, name)
    return entry.number, connections.registry.resolve(f"models:/{name}/{entry.target}")


def stage_ref_of(version: ModelVersionRef, connections: Connections) -> StageRef:
    """Return a registered model as something that a stage can take as input.

    Raises:
        IntegrityError: if its files are damaged or gone.
    """
    manifest = connections.store.find(version.stage, version.stage_key)
    if manifest is None:
        raise IntegrityError(
            f"{version.uri} was made by {version.stage} {version.stage_key[:12]}, "
            "which is damaged in or gone from the store; "
            "roll back to an older version, or run the flow that made it"
        )
    return StageRef(
        stage=manifest.stage,
        step=version.step,
        key=manifest.key,
        digest=manifest.digest,
        kind=manifest.kind,
        metrics=manifest.metrics,
        seconds=manifest.cost["seconds"],
        is_reused=True,
        model_version=version.version,
    )


def evidence_metrics(against_champion: StageRef, against_sft: StageRef) -> Mapping[str, float]:
    """Join both evaluations into what the gate reads: wins over champion, divergence from SFT."""
    return {**against_champion.metrics, "kl_to_reference": against_sft.metrics["kl_to_baseline"]}


__all__ = [
    "ConflictError",
    "champion_of",
    "evidence_metrics",
    "promote",
    "register",
    "stage_ref_of",
]
