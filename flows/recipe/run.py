"""What every flow does around its steps.

Resolve the configuration once, run steps, stop what nobody waits for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from pydantic import BaseModel

from flows.config.lifecycle_config import LifecycleConfig
from flows.config.presets import load_config
from flows.recipe.outline import MATCH, require_steps
from stages.configs.block import StageConfig
from stages.files import write_json
from stages.runtime.sources import missing_sources, pin_revisions
from tasks.connections import Connections, connect
from tasks.gate import Verdict, judge
from tasks.refs import StageRef
from tasks.registry_tasks import evidence_metrics, promote, read_champion, register, stage_ref_of
from tasks.stage_task import StageJob, stage_task
from tasks.submission import leave_all_waiters, stop_abandoned
from tasks.versions import ModelVersionRef
from training_core.errors import ConfigError, ConflictError, DataError, RatchetError

MAX_RUNS = 20
"""A flow run that was started this often, by itself or by Retry, is given up.

So a poisonous one does not loop for ever.
"""

JUDGEMENTS = 3
"""How often a candidate is judged again because the champion moved meanwhile."""


@dataclass
class Recipe:
    """A flow run: its configuration, its connections, and what came of it so far.

    Attributes:
        flow: the flow's name.
        config: resolved.
        connections: where everything is.
        force: steps to do again although they are done.
        champion: when this run was started.
        refs: the finished steps, in their order.
        is_champion: the policy of this run is champion.
        verdict: what the gate said of it; None if it was not asked.
        against: label of what the policy was weighed against.
    """

    flow: str
    config: LifecycleConfig
    connections: Connections
    force: tuple[str, ...]
    champion: ModelVersionRef | None
    refs: dict[str, StageRef] = field(default_factory=dict)
    is_champion: bool = False
    verdict: Verdict | None = None
    against: str = ""

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
        state = patient(job, self.connections, return_state=True)
        if state.is_failed():  # for good; a crash or a cancellation is another type of state
            leave_all_waiters(self.connections.store, str(flow_run.id))
        self.refs[step] = register(state.result(), self.connections, self.config.name)
        return self.refs[step]

    def champion_ref(self) -> StageRef | None:
        """Return the champion at the time when this run was started."""
        return stage_ref_of(self.champion, self.connections) if self.champion else None

    def promote_if_better(
        self,
        candidate: StageRef,
        against_sft: StageRef,
        reward_model: StageRef,
        *,
        who: str | None = None,
        why: str | None = None,
    ) -> bool:
        """Judge the candidate against the champion and make it champion if the evidence suffices.

        If the champion moves meanwhile, the candidate is judged again, against the new one.

        Args:
            candidate: a policy.
            against_sft: its evaluation beside the SFT policy.
            reward_model: for its evaluation beside the champion.
            who: decides, for the ledger; None says the flow.
            why: for the ledger; None says what the candidate beat.

        Returns:
            Whether the candidate is champion at the end.

        Raises:
            ConflictError: if the champion moved under every judgement.
        """
        version = self._as_candidate(candidate)
        for _ in range(JUDGEMENTS):
            based_on, champion = read_champion(self.connections, self.policy_name)
            if champion is not None and champion.digest == candidate.digest:
                get_run_logger().info(
                    "%s/%d is champion already", self.policy_name, champion.version
                )
                self.is_champion = True
                return True
            evidence = self._against(champion, candidate, reward_model) or against_sft
            self.verdict = judge(evidence_metrics(evidence, against_sft), self.config.promotion)
            self.against = "the champion" if champion else "SFT"
            beaten = champion.uri if champion else "the SFT policy"
            try:
                self.is_champion = promote(
                    self.connections,
                    self.policy_name,
                    version,
                    based_on=based_on,
                    verdict=self.verdict,
                    who=who or self.flow,
                    why=why or f"{self.flow}: beats {beaten}",
                )
            except ConflictError as error:
                get_run_logger().warning("judging again: %s", error)
            else:
                return self.is_champion
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
            MATCH,
            self.config.evaluation,
            policy=candidate,
            baseline=baseline,
            reward_model=reward_model,
        )


def open_recipe(
    flow: str,
    preset: str,
    overrides: BaseModel | Mapping[str, Any] | None,
    force: Sequence[str] = (),
    steps_of: Callable[[LifecycleConfig], Sequence[str]] = lambda _: (),
) -> Recipe:
    """Resolve everything that must not change under a flow run, once, and keep it for a Retry.

    Args:
        flow: its name.
        preset: a file of deployments/presets.
        overrides: changes to it.
        force: steps to do again although they are done.
        steps_of: the names that `force` may have, given the config.

    Raises:
        ConfigError: for a wrong preset, key, value or step.
        DataError: if data is not where the config says.
        RatchetError: if the run was resumed too often.
    """
    if (count := int(flow_run.run_count or 1)) > MAX_RUNS:
        raise RatchetError(
            f"this run was started {count} times and is given up; look at its log, "
            "then start a new run, which continues where this one ended"
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
        config = load_config(preset, changes)
        require_steps(force, steps_of(config))
        config = pin_revisions(config)
        _, champion = read_champion(connections, f"{config.name}.policy")
        _write_plan(plan, config, champion)
    if missing := missing_sources(config):
        raise DataError(f"preset '{preset}' cannot run here:\n  " + "\n  ".join(missing))
    return Recipe(flow, config, connections, tuple(force), champion)


def stop_jobs(flow: Any, flow_run: Any, state: Any) -> None:
    """Stop the jobs of a cancelled flow run that no other run waits for.

    Prefect passes these by keyword.
    """
    del flow, state
    connections = connect()
    with get_client(sync_client=True) as client:
        stop_abandoned(
            connections.store,
            connections.cluster,
            str(flow_run.id),
            lambda other: _goes_on(client, other),
        )


def _goes_on(client: SyncPrefectClient, run_id: str) -> bool:
    """Whether a flow run may still want what it waits for; one that Prefect forgot does not."""
    try:
        state = client.read_flow_run(UUID(run_id)).state
    except (ObjectNotFound, ValueError):
        return False
    return state is None or not (state.is_final() or state.is_cancelling())


def _write_plan(path: Any, config: LifecycleConfig, champion: ModelVersionRef | None) -> None:
    content = {
        "config": config.model_dump(mode="json"),
        "champion": champion.model_dump(mode="json") if champion else None,
    }
    write_json(path, content, indent=2)
    text = f"```json\n{json.dumps(content['config'], indent=2)}\n```"
    create_markdown_artifact(
        text, key="resolved-config", description=f"preset {config.name}, resolved"
    )
