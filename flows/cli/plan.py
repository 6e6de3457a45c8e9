"""`ratchet plan`: what a preset would do, before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from flows import full_rlhf, iterative_dpo, raft
from flows.config.lifecycle_config import LifecycleConfig
from flows.config.presets import load_config
from flows.recipe.outline import StepRunner
from stages.configs.block import StageConfig
from stages.runtime.sources import missing_sources, pin_revisions
from stages.runtime.stage_key import semantic_part
from stages.runtime.store import Manifest
from tasks.connections import Connections, connect
from tasks.locks import claimed_step
from tasks.refs import PENDING, StageRef, pending_ref, ref_of
from tasks.registry_tasks import champion_of, stage_ref_of
from tasks.stage_task import StageJob, request_for
from tasks.versions import ModelVersionRef
from training_core.errors import ConfigError, DataError

FLOWS: Mapping[str, Callable[[StepRunner], None]] = {
    "full-rlhf": full_rlhf.steps,
    "iterative-dpo": iterative_dpo.steps,
    "raft": raft.steps,
}


@dataclass(frozen=True)
class PlannedStep:
    """One step: whether it is done, and why not."""

    step: str
    stage: str
    is_done: bool
    reason: str
    num_gpus: float


@dataclass
class Plan:
    """Walks a recipe and looks which steps are done, without doing any; see `StepRunner`."""

    config: LifecycleConfig
    connections: Connections
    champion: ModelVersionRef | None
    refs: dict[str, StageRef] = field(default_factory=dict)
    steps: list[PlannedStep] = field(default_factory=list)

    def run(self, step: str, config: StageConfig, **inputs: StageRef | None) -> StageRef:
        """Note whether the step is done; a step that is not has an unknown result."""
        given = {role: ref for role, ref in inputs.items() if ref is not None}
        job = StageJob(step, config, given, self.config.name)
        waits_for = [ref.step for ref in given.values() if ref.key == PENDING]
        manifest = None if waits_for else self._manifest(job)
        reason = (
            f"after {', '.join(dict.fromkeys(waits_for))}"
            if waits_for
            else self._reason(job, manifest)
        )
        self.refs[step] = (
            ref_of(manifest, step, is_reused=True) if manifest else pending_ref(job.spec.name, step)
        )
        gpus = config.resources.num_gpus * config.resources.num_workers
        self.steps.append(PlannedStep(step, job.spec.name, manifest is not None, reason, gpus))
        return self.refs[step]

    def champion_ref(self) -> StageRef | None:
        """Return the champion of today."""
        return stage_ref_of(self.champion, self.connections) if self.champion else None

    def promote_if_better(
        self, candidate: StageRef, against_sft: StageRef, reward_model: StageRef
    ) -> bool:
        """Note against whom the candidate would be judged."""
        del against_sft, reward_model
        rival = self.champion.uri if self.champion else "the SFT policy"
        is_champion = self.champion is not None and self.champion.digest == candidate.digest
        reason = "it is champion already" if is_champion else f"judged against {rival}"
        self.steps.append(PlannedStep("promotion", "gate", is_champion, reason, 0))
        return False

    def _manifest(self, job: StageJob) -> Manifest | None:
        request = request_for(job, self.connections)
        return self.connections.store.find(request.stage, request.key)

    def _reason(self, job: StageJob, manifest: Manifest | None) -> str:
        if manifest:
            return f"key {manifest.key[:12]}, made by {manifest.attempt}"
        store = self.connections.store
        earlier = [
            m
            for m in store.manifests()
            if claimed_step(store.root, self.config.name, m.stage, m.key) == job.step
        ]
        if not earlier:
            return "never done"
        now, then = semantic_part(job.config), earlier[-1].config
        changes = list(_differences(now, then)) or ["an input or the stage's version"]
        return f"changed: {', '.join(changes[:3])}"


def show_plan(preset: str, flow: str, overrides: Mapping[str, object]) -> bool:
    """Print the steps of a flow with a preset: done or not and why, GPUs, and every problem found.

    Returns:
        Whether it could start.

    Raises:
        ConfigError: for an unknown flow or a config that is not valid.
    """
    if flow not in FLOWS:
        raise ConfigError(f"expected a flow of {', '.join(FLOWS)}, found '{flow}'")
    console = Console()
    config = load_config(preset, overrides)
    problems = missing_sources(config)
    try:
        config = pin_revisions(config)
    except DataError as error:  # the hub is away, or does not know the name
        problems.append(str(error))
    if problems:
        for problem in problems:
            console.print(problem, style="red", markup=False, soft_wrap=True)
        return False
    connections = connect()
    _, champion = champion_of(connections, f"{config.name}.policy")
    plan = Plan(config, connections, champion)
    FLOWS[flow](plan)
    table = Table(title=f"{flow}/{preset}")
    for column in ("step", "stage", "state", "why", "GPUs"):
        table.add_column(column)
    for s in plan.steps:
        table.add_row(
            s.step, s.stage, "done" if s.is_done else "to do", s.reason, f"{s.num_gpus:g}"
        )
    console.print(table)
    return True


def _differences(
    now: Mapping[str, object], then: Mapping[str, object], prefix: str = ""
) -> Iterator[str]:
    for key, value in now.items():
        before = then.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            yield from _differences(value, before, f"{prefix}{key}.")
        elif value != before and list(value if isinstance(value, tuple) else [value]) != before:
            yield f"{prefix}{key} {before} → {value}"
