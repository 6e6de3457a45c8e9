"""`ratchet plan`: what a preset would do, before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rich.table import Table
from rich.text import Text

from flows.cli.plan_sizes import show_sizes
from flows.cli.recipes import recipe_of
from flows.cli.terminal import Terminal
from flows.config.lifecycle_config import LifecycleConfig
from flows.config.presets import load_config
from flows.model_use.named_model import connections_here, knows_services
from flows.recipe.held_out_prompts import shared_prompts
from stages.configs.block import StageConfig
from stages.configs.placement_config import gpus_apart
from stages.configs.stage_record import ArtifactKind
from stages.configs.trained_stage import asks_for_parts
from stages.runtime.manifest import Manifest
from stages.runtime.sources import missing_sources, pin_revisions
from stages.runtime.stage_key import semantic_part
from tasks.connections import Connections
from tasks.locks import claimed_keys
from tasks.refs import PENDING, StageRef, pending_ref, ref_of
from tasks.registry_tasks import champion_of, registered_ref, stage_ref_of
from tasks.stage_task import StageJob, request_for
from tasks.versions import ModelVersionRef
from training_core.errors import DataError, IntegrityError


@dataclass(frozen=True)
class PlannedStep:
    """One step: whether it is done, and why not; `inputs` are step names by role."""

    step: str
    stage: str
    is_done: bool
    reason: str
    num_gpus: float
    inputs: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Plan:
    """Walks a recipe and looks which steps are done; changes nothing; see `StepRunner`."""

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
        manifest, reason = None, f"after {', '.join(dict.fromkeys(waits_for))}"
        if not waits_for:
            manifest, reason = self._look(job)
        self.refs[step] = (
            ref_of(manifest, step, is_reused=True)
            if manifest
            else pending_ref(job.spec.name, step, job.spec.makes)
        )
        gpus = config.resources.num_gpus * config.resources.num_workers + gpus_apart(config)
        names = {role: ref.step for role, ref in given.items()}
        done = manifest is not None
        self.steps.append(PlannedStep(step, job.spec.name, done, reason, gpus, names))
        return self.refs[step]

    def registered(self, name: str, uri: str, kind: ArtifactKind) -> StageRef:
        """Return a version of a registered model, which is given under this name."""
        ref = registered_ref(self.connections, name, uri, kind)
        self.steps.append(PlannedStep(name, "registry", is_done=True, reason=uri, num_gpus=0))
        return ref

    def champion_ref(self) -> StageRef | None:
        """Return the champion of today."""
        return stage_ref_of(self.champion, self.connections) if self.champion else None

    def promote_if_better(
        self, candidate: StageRef, evaluation: StageRef, reward_model: StageRef | None
    ) -> bool:
        """Note against whom the candidate would be judged."""
        del reward_model
        rival = self.champion.uri if self.champion else "the first policy"
        is_champion = self.champion is not None and self.champion.digest == candidate.digest
        reason = "it is champion already" if is_champion else f"judged against {rival}"
        names = {"candidate": candidate.step, "evaluation": evaluation.step}
        self.steps.append(PlannedStep("promotion", "gate", is_champion, reason, 0, names))
        return False

    def _look(self, job: StageJob) -> tuple[Manifest | None, str]:
        """Return the manifest of a step that is done, and why it is done or not."""
        request = request_for(job, self.connections)
        try:
            manifest = self.connections.store.read(request.stage, request.key)
        except IntegrityError as error:
            return None, f"its result is damaged: {error}"
        if manifest is None:
            return None, self._changes(job)
        return manifest, f"key {manifest.key[:12]}, made by {manifest.attempt}"

    def _changes(self, job: StageJob) -> str:
        """Compare a step with the newest result that this lifecycle has of it."""
        store, stage = self.connections.store, job.spec.name
        keys = claimed_keys(store.root, self.config.name, stage, job.step)
        earlier = store.first_of(stage, keys)
        if earlier is None:
            return "never done"
        now, then = semantic_part(job.config), earlier.config
        changes = list(_differences(now, then)) or ["an input or the stage's version"]
        return f"changed: {', '.join(changes[:3])}"


def show_plan(preset: str, flow: str, overrides: Mapping[str, object]) -> bool:
    """Print the steps of a flow with a preset: done or not and why, sizes, and every problem found.

    Before the services have been started, the sizes only.

    Returns:
        Whether it could start, and every step would fit into its GPUs.

    Raises:
        ConfigError: for an unknown flow or a config that is not valid.
    """
    steps, console = recipe_of(flow), Terminal()
    config = load_config(preset, overrides)
    problems, hub_answers = missing_sources(config), True
    try:
        config = pin_revisions(config)
        problems += [] if problems else shared_prompts(config, downloads=False)
    except DataError as error:  # the hub is away or does not know the name; data is unreadable
        problems.append(str(error))
        hub_answers = False
    problems = problems or _problems_of_models(config)
    if problems:
        for problem in problems:
            console.print(problem, style="red", soft_wrap=True)
        show_sizes(console, config, steps, downloads=hub_answers)
        return False
    if not knows_services():
        console.print("Nothing is known to be done: no services were started here (`ratchet up`).")
        return show_sizes(console, config, steps)
    connections = connections_here()
    _, champion = champion_of(connections, f"{config.name}.policy")
    plan = Plan(config, connections, champion)
    steps(plan)
    table = Table(title=Text(f"{flow}/{preset}"))
    for column in ("step", "stage", "from", "state", "why", "GPUs"):
        table.add_column(column)
    for s in plan.steps:
        state, sources = (
            "done" if s.is_done else "to do",
            ", ".join(dict.fromkeys(s.inputs.values())),
        )
        # As texts, because a value of the config may look like rich's markup, e.g. "[/b]".
        table.add_row(*map(Text, (s.step, s.stage, sources, state, s.reason, f"{s.num_gpus:g}")))
    console.print(table)
    return show_sizes(console, config, steps)


def _problems_of_models(config: LifecycleConfig) -> list[str]:
    """Check options that need the base model's config, e.g. `frozen`."""
    stages, start = config.stages(), config.start()
    if start is None or not any(asks_for_parts(stage) for stage in stages.values()):
        return []
    from stages.data_check.planned_models import problems_of_models  # noqa: PLC0415 - imports torch

    return [f"{where}: {problem}" for where, problem in problems_of_models(start, stages)]


def _differences(
    now: Mapping[str, object], then: Mapping[str, object], prefix: str = ""
) -> Iterator[str]:
    for key, value in now.items():
        before = then.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            yield from _differences(value, before, f"{prefix}{key}.")
        elif value != before and list(value if isinstance(value, tuple) else [value]) != before:
            yield f"{prefix}{key} {before} → {value}"
