"""A finished lifecycle as plain frozen data, read from the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from stages.configs.canary_record import CanaryRecord
from stages.runtime.manifest import Manifest
from stages.runtime.store import Store
from tasks.gate import Verdict
from tasks.refs import StageRef
from tasks.report.curves import Curve, read_curves
from tasks.report.differences import Difference, differences
from tasks.report.policy_scores import Evaluation, read_evaluation
from tasks.report.results import result_of
from tasks.report.reward_rounds import RewardRounds, read_reward_rounds
from tasks.report.samples import Samples, read_rows
from tasks.versions import MODEL_SUFFIX

KEY_LENGTH = 12


@dataclass(frozen=True)
class StepPages:
    """MLflow's pages of a step: its run, and the model version that it made; empty without one."""

    run: str = ""
    version: str = ""


@dataclass(frozen=True)
class About:
    """The flow run that the report describes.

    Attributes:
        lifecycle: prefix of the names of its models.
        flow: the flow's name.
        flow_run_id: the Prefect run.
        at: Unix time of the report.
        outside: step name by stage key, for inputs from other runs, e.g. the champion.
        name: of the run.
        page: address of the run's page in Prefect; empty if it has none.
        steps: MLflow's pages, by step.
    """

    lifecycle: str
    flow: str
    flow_run_id: str
    at: float
    outside: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    page: str = ""
    steps: Mapping[str, StepPages] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The result of the promotion.

    Attributes:
        is_champion: the candidate is champion at the end.
        model_version: the candidate's number in the registry.
        verdict: verdict of the gate; None if there was none.
        against: name of the policy that the candidate was compared with.
        approval: what a person said of it, or that one is awaited; empty if nobody is asked.
    """

    is_champion: bool
    model_version: int | None = None
    verdict: Verdict | None = None
    against: str = ""
    approval: str = ""


@dataclass(frozen=True)
class Source:
    """Origin of an input: a step's name, or the start of the key of another run's stage."""

    role: str
    origin: str


@dataclass(frozen=True)
class Step:
    """One step of the flow; fields from its manifest are empty if the manifest is missing."""

    ref: StageRef
    version: str | None
    result: str
    inputs: tuple[Source, ...] | None = None
    cost: Mapping[str, float] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    curves: tuple[Curve, ...] = ()
    log: Path | None = None
    samples: tuple[Samples, ...] = ()
    reward_rounds: RewardRounds | None = None
    canaries: tuple[CanaryRecord, ...] = ()

    @property
    def key(self) -> str:
        """The start of the stage key, as in logs and job ids."""
        return self.ref.key[:KEY_LENGTH]


@dataclass(frozen=True)
class Lifecycle:
    """Everything that the page shows.

    Attributes:
        about: the flow run.
        outcome: result of the promotion.
        steps: in the flow's order.
        evaluations: of all policies, and of candidate and champion.
        config: the resolved config as YAML.
        index: page with the reports of all runs.
        differences: fields whose value differs from one of the runs in `compared`.
        compared: titles of the runs with which the config was compared.
    """

    about: About
    outcome: Outcome
    steps: tuple[Step, ...]
    evaluations: tuple[Evaluation, ...]
    config: str
    index: Path
    differences: tuple[Difference, ...] = ()
    compared: tuple[str, ...] = ()

    @property
    def judged(self) -> Evaluation | None:
        """The evaluation of all policies; later ones only compare candidate and champion."""
        return self.evaluations[0] if self.evaluations else None


def gather(
    store: Store,
    refs: Sequence[StageRef],
    config: BaseModel,
    about: About,
    outcome: Outcome,
    *,
    compared: Mapping[str, Mapping[str, Any]] | None = None,
) -> Lifecycle:
    """Read the results of the steps from the store.

    Args:
        store: contains their manifests.
        refs: finished steps in the flow's order.
        config: the resolved config.
        about: the flow run.
        outcome: result of the promotion.
        compared: resolved configs of other runs, by a title, to show what differs.
    """
    manifests = {ref.step: store.find(ref.stage, ref.key) for ref in refs}
    names = dict(about.outside) | {ref.key: ref.step for ref in refs}
    evaluations = {
        step: read_evaluation(store, manifest, step, names)
        for step, manifest in manifests.items()
        if manifest is not None and manifest.kind == "evaluation"
    }
    judged = next(iter(evaluations.values()), None)
    scores = {score.step: score for score in judged.scores} if judged else {}
    steps = []
    for ref in refs:
        result = result_of(ref, scores.get(ref.step), evaluations.get(ref.step))
        step = Step(ref, _version_of(ref, about.lifecycle), result)
        manifest = manifests[ref.step]
        steps.append(_with_manifest(step, manifest, store, names, judged) if manifest else step)
    now, others = config.model_dump(mode="json"), compared or {}
    return Lifecycle(
        about,
        outcome,
        tuple(steps),
        tuple(evaluations.values()),
        yaml.safe_dump(now, sort_keys=False, allow_unicode=True),
        store.root.resolve() / "reports" / "index.html",
        differences(now, others),
        tuple(others),
    )


def _version_of(ref: StageRef, lifecycle: str) -> str | None:
    if ref.model_version is None:
        return None
    return f"{lifecycle}.{MODEL_SUFFIX[ref.kind]}/{ref.model_version}"


def _with_manifest(
    step: Step,
    manifest: Manifest,
    store: Store,
    names: Mapping[str, str],
    judged: Evaluation | None,
) -> Step:
    inputs = [Source(r, names.get(k, k[:KEY_LENGTH])) for r, k in manifest.parents.items()]
    attempt = store.attempt_of(manifest)
    return replace(
        step,
        inputs=tuple(inputs),
        cost=manifest.cost,
        environment=manifest.environment,
        canaries=manifest.canaries,
        curves=read_curves(manifest.stage, attempt.metrics),
        log=attempt.log.resolve() if attempt.log.exists() else None,
        samples=_samples_of(step, manifest, store, judged),
        reward_rounds=read_reward_rounds(manifest, attempt.metrics),
    )


def _samples_of(
    step: Step, manifest: Manifest, store: Store, judged: Evaluation | None
) -> tuple[Samples, ...]:
    """Return the rows that a step made, or the held-out responses of the policy that it made."""
    if manifest.kind == "dataset":
        return read_rows(store.artifact_dir(manifest) / "data.jsonl")
    scored = judged.samples.get(step.ref.step) if judged and manifest.kind == "policy" else None
    return (scored,) if scored else ()
