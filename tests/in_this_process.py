"""Does the steps of a recipe in this process, as Ray would do each in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from flows.config.lifecycle_config import LifecycleConfig
from stages.configs.block import ResourcesConfig, StageConfig
from stages.configs.stage_record import ArtifactKind
from stages.files import write_text
from stages.runtime.ray_cluster import RayCluster
from stages.runtime.store import Store
from tasks.connections import Connections
from tasks.refs import StageRef, ref_of
from tasks.registry import Registry
from tasks.stage_task import StageJob, request_for
from tests.stages.running import run_here

NOWHERE = "http://127.0.0.1:1"


@dataclass
class InThisProcess:
    """See `flows.recipe.outline.StepRunner`; a step that the store has is not done again."""

    config: LifecycleConfig
    folder: Path
    refs: dict[str, StageRef] = field(default_factory=dict)

    def __post_init__(self) -> None:
        store = Store(self.folder)
        self.connections = Connections(store, RayCluster(NOWHERE), Registry(NOWHERE, store))

    def run(self, step: str, config: StageConfig, **inputs: StageRef | None) -> StageRef:
        store = self.connections.store
        config = config.model_copy(update={"resources": ResourcesConfig(num_cpus=1)})
        given = {role: ref for role, ref in inputs.items() if ref is not None}
        request = request_for(StageJob(step, config, given, self.config.name), self.connections)
        if store.find(request.stage, request.key) is None:
            attempt = store.attempt(request.stage, request.key, "a1")
            write_text(attempt.request, request.model_dump_json())
            assert run_here(attempt.request) == 0, attempt.error.read_text()
        manifest = store.find(request.stage, request.key)
        assert manifest is not None
        self.refs[step] = ref_of(manifest, step, is_reused=False)
        return self.refs[step]

    def registered(self, name: str, uri: str, kind: ArtifactKind) -> StageRef:
        raise AssertionError(f"given.{name}: there is no registry with the {kind} {uri}")

    def champion_ref(self) -> StageRef | None:
        return None

    def promote_if_better(
        self, candidate: StageRef, evaluation: StageRef, reward_model: StageRef | None
    ) -> bool:
        del candidate, evaluation, reward_model
        return False
