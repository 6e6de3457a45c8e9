"""A flow run: it does the steps of a recipe and promotes the policy that they made."""

from __future__ import annotations

from dataclasses import dataclass, field

from prefect import get_run_logger
from prefect.runtime import flow_run

from flows.config.lifecycle_config import LifecycleConfig
from flows.recipe.outline import MATCH
from stages.configs.block import StageConfig
from tasks.connections import Connections
from tasks.gate import Verdict, judge
from tasks.refs import StageRef
from tasks.registry_tasks import evidence_metrics, promote, read_champion, register, stage_ref_of
from tasks.stage_task import StageJob, stage_task
from tasks.submission import leave_all_waiters
from tasks.versions import ModelVersionRef
from training_core.errors import ConfigError, ConflictError

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
        against: name of the policy that it was judged against.
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
