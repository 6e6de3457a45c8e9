"""Walks a recipe and does every step here, each as a process on the CPUs of this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from flows.config.lifecycle_config import LifecycleConfig
from flows.recipe.judging_rules import uses_of_judge
from stages.configs.block import StageConfig
from stages.configs.stage_record import ArtifactKind
from stages.runtime.forked_stage import FOLDER_VARIABLE
from stages.runtime.local_run import LocalRunError, run_here
from stages.runtime.manifest import Manifest
from stages.runtime.ray_cluster import RayCluster
from stages.runtime.store import Store
from tasks.connections import Connections
from tasks.gate import Verdict, judge
from tasks.refs import StageRef, ref_of
from tasks.registry import Registry
from tasks.registry_tasks import evidence_metrics
from tasks.stage_task import StageJob, request_for
from training_core.errors import RatchetError

NOWHERE = "http://127.0.0.1:1"
"""Neither Ray nor MLflow is asked."""


class RehearsalError(RatchetError):
    """A step of the rehearsal failed."""


@dataclass(frozen=True)
class RehearsedStep:
    """A step that was done: its name, stage, number of workers, seconds and what it made."""

    step: str
    stage: str
    num_workers: int
    seconds: float
    kind: str


@dataclass
class Rehearsal:
    """Does the steps of a miniature one after another; see `flows.recipe.outline.StepRunner`.

    Attributes:
        config: the miniature.
        folder: gets the store.
        fork_servers: gets the sockets of fork servers; the servers end when it is deleted.
        starts: called with the name of each step before it starts.
        done: the steps so far.
        verdict: what the gate says of the evaluation; None before.
    """

    config: LifecycleConfig
    folder: Path
    fork_servers: Path
    starts: Callable[[str], None] = lambda _: None
    refs: dict[str, StageRef] = field(default_factory=dict)
    done: list[RehearsedStep] = field(default_factory=list)
    verdict: Verdict | None = None

    def __post_init__(self) -> None:
        """Open the store."""
        store = Store(self.folder / "store")
        self._connections = Connections(store, RayCluster(NOWHERE), Registry(NOWHERE, store))

    def run(self, step: str, config: StageConfig, **inputs: StageRef | None) -> StageRef:
        """Do a step.

        Raises:
            RehearsalError: if its process failed; the message has its reason and its log.
        """
        self.starts(step)
        started = time.monotonic()
        given = {role: ref for role, ref in inputs.items() if ref is not None}
        job = StageJob(step, config, given, self.config.name)
        manifest = self._done(job)
        seconds = time.monotonic() - started
        workers = config.resources.num_workers
        self.done.append(RehearsedStep(step, job.spec.name, workers, seconds, manifest.kind))
        self.refs[step] = ref_of(manifest, step, is_reused=False)
        return self.refs[step]

    def registered(self, name: str, uri: str, kind: ArtifactKind) -> StageRef:
        """Refuse: a rehearsal asks no registry."""
        raise RehearsalError(
            f"given.{name}: expected a directory or an id of the hub, of which a small model can "
            f"be made, found the {kind} {uri}; override it, e.g. given.{name}=<directory>"
        )

    def champion_ref(self) -> StageRef | None:
        """There is no champion."""
        return None

    def promote_if_better(
        self, candidate: StageRef, evaluation: StageRef, reward_model: StageRef | None
    ) -> bool:
        """Ask the gate; nothing is promoted."""
        del candidate, reward_model
        self.verdict = judge(
            evidence_metrics(evaluation, None),
            self.config.promotion,
            dependent_judge=uses_of_judge(self.config),
        )
        return False

    def _done(self, job: StageJob) -> Manifest:
        request = request_for(job, self._connections)
        fork_servers = os.environ.get(FOLDER_VARIABLE, str(self.fork_servers))  # empty: none
        variables = {"CUDA_VISIBLE_DEVICES": "", FOLDER_VARIABLE: fork_servers}
        try:
            return run_here(self._connections.store, request, variables)
        except LocalRunError as error:
            raise RehearsalError(str(error)) from error
