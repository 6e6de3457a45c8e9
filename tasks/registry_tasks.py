"""Prefect tasks that copy finished stages to the registry and change the champion."""

from __future__ import annotations

from typing import Any

from prefect import get_run_logger, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event

from stages.configs.stage_record import ArtifactKind
from tasks import ledger
from tasks.attempts import Match
from tasks.connections import Connections
from tasks.decisions import CHANGING, Decision
from tasks.failures import is_transient
from tasks.gate import as_table
from tasks.refs import StageRef
from tasks.this_run import this_flow_run
from tasks.versions import ModelVersionRef
from training_core.errors import ConfigError, IntegrityError

REGISTRY_RETRIES: list[float] = [2, 10, 30, 60, 120]
PATIENT: dict[str, Any] = {
    "cache_policy": NO_CACHE,
    "retries": len(REGISTRY_RETRIES),
    "retry_delay_seconds": REGISTRY_RETRIES,
    "retry_condition_fn": is_transient,
}
"""Options of every task that uses MLflow, so that a short outage does not end a flow."""


@task(
    name="register",
    task_run_name="register {ref.step}",
    **PATIENT,
)
def register(
    ref: StageRef, connections: Connections, lifecycle: str, *, is_candidate: bool = False
) -> StageRef:
    """Make the finished stage a model version (or a finished run, for data), once.

    Returns:
        The ref, with its model version if it has one.

    Raises:
        IntegrityError: if the stage's files differ from its manifest.
        TransientError: if MLflow cannot be reached; nothing is lost.
    """
    manifest = connections.store.find_digest(ref.stage, ref.key, ref.digest)
    if manifest is None:
        raise IntegrityError(
            f"the files of step '{ref.step}' are damaged or gone; run the flow again"
        )
    version = connections.registry.register(
        manifest,
        lifecycle=lifecycle,
        step=ref.step,
        flow_run=this_flow_run(),
        is_candidate=is_candidate,
    )
    if not ref.is_reused:  # else the run that made it has the table
        rows = [{"metric": name, "value": f"{value:.4g}"} for name, value in ref.metrics.items()]
        key = f"{ref.step.replace('_', '-')}-metrics"
        create_table_artifact(rows, key=key, description=ref.step)
    return ref.model_copy(update={"model_version": version.version}) if version else ref


@task(
    name="promote",
    task_run_name="promote {name}/{version}",
    **PATIENT,
)
def promote(connections: Connections, name: str, version: int, decision: Decision) -> bool:
    """Write the decision to an artifact and the ledger; if it says so, the version is champion.

    Returns:
        Whether the champion changed.

    Raises:
        ConflictError: if the champion changed or another candidate was judged meanwhile; judge
            again.
    """
    log, evidence = get_run_logger(), decision.evidence
    create_markdown_artifact(as_table(evidence), key="promotion", description=f"{name}/{version}")
    if decision.verdict not in CHANGING:
        ledger.refuse(connections.registry, name, version, decision)
        log.warning(
            "%s/%d stays a candidate (%s): %s; champion did not move",
            name,
            version,
            decision.verdict,
            f"expected {evidence.failed()}" if not evidence.passed else decision.why,
        )
        return False
    entry = ledger.promote(connections.registry, name, version, decision)
    _tell_promoted(name, version, entry)
    return True


@task(name="force", task_run_name="force {name}/{version}", **PATIENT)
def force(
    connections: Connections, name: str, version: int, *, based_on: int, who: str, why: str
) -> None:
    """Make a version the champion without the gate.

    Raises:
        ConfigError: if the name or the reason is blank.
        ConflictError: if another process changed the champion meanwhile.
    """
    entry = ledger.force(connections.registry, name, version, based_on=based_on, who=who, why=why)
    get_run_logger().warning("%s/%d was not judged: %s forces it: %s", name, version, who, why)
    _tell_promoted(name, version, entry)


@task(name="rollback", task_run_name="rollback {name}/{version}", **PATIENT)
def roll_back(
    connections: Connections, name: str, version: int, *, based_on: int, who: str, why: str
) -> None:
    """Make a former champion the champion again.

    Raises:
        ConfigError: if it was never champion.
        ConflictError: if another process changed the champion meanwhile.
    """
    ledger.rollback(connections.registry, name, version, based_on=based_on, who=who, why=why)
    get_run_logger().info("%s/%d is champion again", name, version)


def _tell_promoted(name: str, version: int, entry: ledger.Promotion) -> None:
    emit_event(
        "ratchet.model.promoted",
        resource={"prefect.resource.id": f"ratchet.model.{name}"},
        payload={"name": name, "version": version, "entry": entry.number},
    )
    get_run_logger().info("%s/%d is champion (entry %d of the ledger)", name, version, entry.number)


@task(name="attempt", task_run_name="attempts on {name}", **PATIENT)
def count_attempts(connections: Connections, name: str, match: Match) -> int:
    """Return the number of an attempt; see `ledger.attempt_number`."""
    return ledger.attempt_number(connections.registry, name, match)


@task(name="champion", task_run_name="champion of {name}", **PATIENT)
def read_champion(connections: Connections, name: str) -> tuple[int, ModelVersionRef | None]:
    """Call `champion_of` and set the aliases to it; retry during a short outage of MLflow."""
    number, champion = champion_of(connections, name)
    if champion is not None:
        ledger.heal(connections.registry, name)
    return number, champion


def champion_of(connections: Connections, name: str) -> tuple[int, ModelVersionRef | None]:
    """Return the number of the ledger's last valid entry (0 for none), and the champion.

    Changes nothing.
    """
    entry = ledger.champion(connections.registry, name)
    if entry is None:
        return 0, None
    return entry.number, connections.registry.models.resolve(f"models:/{name}/{entry.target}")


def stage_ref_of(version: ModelVersionRef, connections: Connections) -> StageRef:
    """Return a registered model as a ref that a stage can take as input.

    If its stage has run again since, the ref has the files of the earlier run.

    Raises:
        IntegrityError: if its files are damaged or missing.
    """
    manifest = connections.store.find_digest(version.stage, version.stage_key, version.digest)
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


def registered_ref(connections: Connections, name: str, uri: str, kind: ArtifactKind) -> StageRef:
    """Return a version of a registered model as the ref of a step.

    Args:
        connections: with the registry.
        name: of the step whose place it takes.
        uri: `models:/<name>/<version>` or `models:/<name>@<alias>`.
        kind: that it must have.

    Raises:
        ConfigError: if there is no such version, or it is of another kind.
        IntegrityError: if its files are damaged or missing.
    """
    ref = stage_ref_of(connections.registry.models.resolve(uri), connections)
    if ref.kind != kind:
        raise ConfigError(
            f"given.{name}: expected a {kind}, found {uri}, which is a {ref.kind}; choose another"
        )
    return ref.model_copy(update={"step": name})


def evidence_metrics(against_sft: StageRef, against_champion: StageRef | None) -> dict[str, float]:
    """Join two evaluations for the gate: what the candidate must beat, and how it compares to SFT.

    Args:
        against_sft: evaluation beside the SFT policy.
        against_champion: evaluation beside the champion; None while there is no champion.
    """
    sft = against_sft.metrics
    kl = {"kl_to_reference": sft["kl_to_baseline"]} if "kl_to_baseline" in sft else {}
    if against_champion is None:
        return {**sft, **kl}
    return {**against_champion.metrics, **kl, "win_rate_over_sft": sft["win_rate"]}
