"""What every flow does around its steps.

Resolve the configuration once, run steps, stop what nobody waits for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run
from pydantic import BaseModel

from flows.lifecycle_config import LifecycleConfig
from flows.presets import load_config
from stages.contract import StageConfig
from stages.sources import missing_sources, pinned
from tasks.connections import Connections, connect
from tasks.evidence import judge
from tasks.lineage import champion_of, evidence_metrics, promote, register, stage_ref_of
from tasks.refs import StageRef
from tasks.stage_task import StageJob, stage_task
from tasks.submission import stop_abandoned
from tasks.versions import ModelVersionRef
from training_core.errors import ConfigError, ConflictError, DataError, RatchetError

MAX_RUNS = 5
"""A flow run that crashed and was resumed this often is given up.

So a poisonous one does not loop for ever.
"""

JUDGEMENTS = 3
"""How often a candidate is judged again because the champion moved meanwhile."""


class Steps(Protocol):
    """What a recipe is written against: a flow run does the steps, a plan only looks at them."""

    config: LifecycleConfig
    connections: Connections
    champion: ModelVersionRef | None
    refs: dict[str, StageRef]

    def run(self, step: str, config: StageConfig, **inputs: StageRef | None) -> StageRef:
        """Do a step, or find it done."""
        ...

    def promote_if_better(
        self, candidate: StageRef, against_sft: StageRef, reward_model: StageRef
    ) -> bool:
        """Judge the candidate against the champion."""
        ...


@dataclass
class Recipe:
    """A flow run: its configuration, its connections, and the steps done so far."""

    flow: str
    config: LifecycleConfig
    connections: Connections
    force: tuple[str, ...]
    champion: ModelVersionRef | None
    started: float = field(default_factory=time.time)
    refs: dict[str, StageRef] = field(default_factory=dict)
    is_promoted: bool = False

    @property
    def policy_name(self) -> str:
        """The registered model of policies."""
        return f"{self.config.name}.policy"

    def run(self, step: str, config: StageConfig, **inputs: StageRef | None) -> StageRef:
        """Do a step, or find it done, and register what it made.

        Args:
            step: unique name in the flow.
            config: what to do; its class says which stage.
            inputs: finished steps by role; None ones are left out.

        Raises:
            RatchetError: what ended the step, after all tries.
        """
        retries = self.config.retries
        given = {role: ref for role, ref in inputs.items() if ref is not None}
        job = StageJob(step, config, given, self.config.name, is_forced=step in self.force)
        patient = stage_task.with_options(
            retries=retries.limit, retry_delay_seconds=list(retries.delay_seconds) or [0]
        )
        ref = patient(job, self.connections, return_state=True).result()
        self.refs[step] = register(ref, self.connections, self.config.name)
        return self.refs[step]

    def promote_if_better(
        self, candidate: StageRef, against_sft: StageRef, reward_model: StageRef
    ) -> bool:
        """Judge the candidate against the champion and make it champion if the evidence suffices.

        If the champion moves meanwhile, the candidate is judged again, against the new one.

        Returns:
            Whether the candidate is champion at the end.

        Raises:
            ConflictError: if the champion moved under every judgement.
        """
        version = self._as_candidate(candidate)
        for _ in range(JUDGEMENTS):
            based_on, champion = champion_of(self.connections, self.policy_name)
            if champion is not None and champion.digest == candidate.digest:
                get_run_logger().info(
                    "%s/%d is champion already", self.policy_name, champion.version
                )
                self.is_promoted = True
                return True
            evidence = self._against(champion, candidate, reward_model) or against_sft
            verdict = judge(evidence_metrics(evidence, against_sft), self.config.promotion)
            why = f"{self.flow}: beats {champion.uri if champion else 'the SFT policy'}"
            try:
                self.is_promoted = promote(
                    self.connections,
                    self.policy_name,
                    version,
                    based_on=based_on,
                    verdict=verdict,
                    who=self.flow,
                    why=why,
                )
            except ConflictError as error:
                get_run_logger().warning("judging again: %s", error)
            else:
                return self.is_promoted
        raise ConflictError(
            f"the champion of {self.policy_name} moved under {JUDGEMENTS} judgements; "
            "run the flow again"
        )

    def _as_candidate(self, candidate: StageRef) -> int:
        marked = register(candidate, self.connections, self.config.name, is_candidate=True)
        if marked.model_version is None:
            raise ConfigError(f"step '{candidate.step}' made no policy, so it cannot be promoted")
        return marked.model_version

    def _against(
        self, champion: ModelVersionRef | None, candidate: StageRef, reward_model: StageRef
    ) -> StageRef | None:
        if champion is None:
            return None
        baseline = stage_ref_of(champion, self.connections)
        return self.run(
            "champion_match",
            self.config.evaluation,
            policy=candidate,
            baseline=baseline,
            reward_model=reward_model,
        )


def open_recipe(
    flow: str, preset: str, overrides: BaseModel | Mapping[str, Any] | None, force: list[str]
) -> Recipe:
    """Resolve everything that must not change under a flow run, once, and keep it for a Retry.

    Raises:
        ConfigError: for a wrong preset, key or value.
        DataError: if data is not where the config says.
        RatchetError: if the run was resumed too often.
    """
    if (count := int(flow_run.run_count or 1)) > MAX_RUNS:
        raise RatchetError(
            f"this run has crashed {count - 1} times and is given up; "
            "look at its log, then start a new one"
        )
    connections = connect()
    plan = connections.store.root / "plans" / f"{flow_run.id}.json"
    if plan.exists():
        kept = json.loads(plan.read_text())
        config = LifecycleConfig.model_validate(kept["config"])
        champion = kept["champion"] and ModelVersionRef.model_validate(kept["champion"])
    else:
        changes = (
            overrides.model_dump(exclude_unset=True)
            if isinstance(overrides, BaseModel)
            else overrides
        )
        config = pinned(load_config(preset, changes))
        _, champion = champion_of(connections, f"{config.name}.policy")
        _write_plan(plan, config, champion)
    if missing := missing_sources(config):
        raise DataError(f"preset '{preset}' cannot run here:\n  " + "\n  ".join(missing))
    unknown = set(force) - set(step_names(config))
    if unknown:
        raise ConfigError(
            f"force names unknown steps {sorted(unknown)}; "
            f"there are: {', '.join(step_names(config))}"
        )
    return Recipe(flow, config, connections, tuple(force), champion)


def step_names(config: LifecycleConfig) -> list[str]:
    """Names of the steps that `force` may name."""
    rounds = range(1, config.iterative_dpo.rounds + 1)
    return [
        "sft",
        "feedback",
        "reward_model",
        "rejection_sampling",
        "rejection_sft",
        *(f"{step}_{r}" for r in rounds for step in ("preference_pairs", "dpo")),
        "ppo",
        "evaluation",
        "champion_match",
    ]


def stop_jobs(flow: Any, flow_run: Any, state: Any) -> None:
    """Stop the jobs of a cancelled flow run that no other run waits for.

    Prefect passes these by keyword.
    """
    del flow, state
    connections = connect()
    stop_abandoned(connections.store, connections.cluster, str(flow_run.id))


def _write_plan(path: Any, config: LifecycleConfig, champion: ModelVersionRef | None) -> None:
    content = {
        "config": config.model_dump(mode="json"),
        "champion": champion.model_dump(mode="json") if champion else None,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(content, indent=2))
    draft.replace(path)
    text = f"```json\n{json.dumps(content['config'], indent=2)}\n```"
    create_markdown_artifact(
        text, key="resolved-config", description=f"preset {config.name}, resolved"
    )
