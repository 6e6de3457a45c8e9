"""A finished lifecycle as plain frozen data, read from the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import yaml
from pydantic import BaseModel

from stages.runtime.store import Manifest, Store
from tasks.gate import Verdict
from tasks.refs import StageRef
from tasks.report.curves import Curve, read_curves
from tasks.report.policy_scores import Evaluation, read_evaluation
from tasks.report.results import result_of
from tasks.versions import MODEL_SUFFIX

KEY_LENGTH = 12


@dataclass(frozen=True)
class About:
    """Which flow run the report is about.

    Attributes:
        lifecycle: name of the preset's models.
        flow: the flow's name.
        flow_run_id: the Prefect run.
        at: Unix time of the report.
        outside: step name by stage key, for inputs that other runs made, as the champion.
    """

    lifecycle: str
    flow: str
    flow_run_id: str
    at: float
    outside: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How the promotion went.

    Attributes:
        is_champion: the candidate is champion at the end.
        model_version: the candidate's number in the registry.
        verdict: what the gate said; None if it was not asked.
        against: label of what the candidate was weighed against.
    """

    is_champion: bool
    model_version: int | None = None
    verdict: Verdict | None = None
    against: str = ""


@dataclass(frozen=True)
class Source:
    """Where an input came from: a step's name, or the start of a key that this run did not make."""

    role: str
    origin: str


@dataclass(frozen=True)
class Step:
    """One step of the flow; what only its manifest knows is empty where that is gone."""

    ref: StageRef
    version: str | None
    result: str
    inputs: tuple[Source, ...] | None = None
    cost: Mapping[str, float] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    curves: tuple[Curve, ...] = ()

    @property
    def key(self) -> str:
        """The start of the stage key, as people see it everywhere else."""
        return self.ref.key[:KEY_LENGTH]


@dataclass(frozen=True)
class Lifecycle:
    """Everything that the page shows."""

    about: About
    outcome: Outcome
    steps: tuple[Step, ...]
    evaluations: tuple[Evaluation, ...]
    config: str

    @property
    def judged(self) -> Evaluation | None:
        """The evaluation of all policies; a later one only weighs candidate against champion."""
        return self.evaluations[0] if self.evaluations else None


def gather(
    store: Store, refs: Sequence[StageRef], config: BaseModel, about: About, outcome: Outcome
) -> Lifecycle:
    """Read what the steps left in the store.

    Args:
        store: where their manifests are.
        refs: finished steps in the flow's order.
        config: resolved.
        about: the flow run.
        outcome: of the promotion.
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
        steps.append(_with_manifest(step, manifest, store, names) if manifest else step)
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    return Lifecycle(about, outcome, tuple(steps), tuple(evaluations.values()), text)


def _version_of(ref: StageRef, lifecycle: str) -> str | None:
    if ref.model_version is None:
        return None
    return f"{lifecycle}.{MODEL_SUFFIX[ref.kind]}/{ref.model_version}"


def _with_manifest(step: Step, manifest: Manifest, store: Store, names: Mapping[str, str]) -> Step:
    inputs = [Source(r, names.get(k, k[:KEY_LENGTH])) for r, k in manifest.parents.items()]
    return replace(
        step,
        inputs=tuple(inputs),
        cost=manifest.cost,
        environment=manifest.environment,
        curves=read_curves(manifest.stage, store.attempt_of(manifest).metrics),
    )
