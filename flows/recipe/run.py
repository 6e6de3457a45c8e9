"""A flow run: it does the steps of a recipe and promotes the policy that they made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from prefect import get_run_logger
from prefect.runtime import flow_run

from flows.config.lifecycle_config import LifecycleConfig
from flows.recipe.allowances import allowances_for
from flows.recipe.approval import question_of, with_answer
from flows.recipe.judging_rules import digest_of_prompts, sources_of_prompts, uses_of_judge
from flows.recipe.outline import MATCH
from flows.recipe.reward_model_bar import require_admitted_reward_model
from stages.configs.block import StageConfig
from stages.configs.evaluation_config import EvaluationConfig
from stages.configs.stage_record import ArtifactKind
from tasks.attempts import Match
from tasks.budget import Allowance
from tasks.connections import Connections
from tasks.decisions import RELATIONS, Decision
from tasks.gate import Verdict, judge
from tasks.gate.judged_responses import read_responses
from tasks.refs import StageRef
from tasks.registry_tasks import (
    count_attempts,
    evidence_metrics,
    promote,
    read_champion,
    register,
    registered_ref,
    stage_ref_of,
)
from tasks.report.results import result_of
from tasks.run_steps import RunStep, note_step
from tasks.stage_task import StageJob, stage_task
from tasks.submission import leave_all_waiters
from tasks.versions import ModelVersionRef
from training_core.errors import ConfigError, ConflictError

JUDGEMENTS = 3
"""How often a candidate is judged if the champion moves, or another is judged, meanwhile."""


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
        given: versions of registered models that the preset gives, by name.
        began: Unix time at which this run was started for the first time.
        is_champion: the policy of this run is champion.
        verdict: what the gate said of it; None if it was not asked.
        against: name of the policy that it was judged against.
        decision: about it, by the gate and by a person; None if there is none yet.
        report: writes the report so far, for a person who is asked for an approval, and returns
            where it is.
    """

    flow: str
    config: LifecycleConfig
    connections: Connections
    force: tuple[str, ...]
    champion: ModelVersionRef | None
    refs: dict[str, StageRef] = field(default_factory=dict)
    given: dict[str, StageRef] = field(default_factory=dict)
    began: float = 0.0
    is_champion: bool = False
    verdict: Verdict | None = None
    against: str = ""
    decision: Decision | None = None
    report: Callable[[Recipe], str] | None = None

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
        require_admitted_reward_model(self.config, step, config, given)
        job = StageJob(
            step,
            config,
            given,
            self.config.name,
            is_forced=step in self.force,
            allowances=self._allowances(step, config),
            since=self.began,
            outage_seconds=retries.outage_seconds,
        )
        patient = stage_task.with_options(
            retries=retries.limit, retry_delay_seconds=list(retries.delay_seconds) or [0]
        )
        state = patient(job, self.connections, return_state=True)
        if state.is_failed():  # for good; a crash or a cancellation is another type of state
            leave_all_waiters(self.connections.store, str(flow_run.id))
        ref = register(state.result(), self.connections, self.config.name)
        finished = RunStep(
            step=step,
            stage=ref.stage,
            key=ref.key,
            version=ref.model_version,
            result=result_of(ref, None, None),
            seconds=ref.seconds,
        )
        note_step(self.connections.store, str(flow_run.id), finished)
        self.refs[step] = ref
        return ref

    def registered(self, name: str, uri: str, kind: ArtifactKind) -> StageRef:
        """Return a version of a registered model, which is given under this name.

        Raises:
            ConfigError: if there is none, or it is of another kind.
        """
        self.given[name] = registered_ref(self.connections, name, uri, kind)
        return self.given[name]

    def champion_ref(self) -> StageRef | None:
        """Return the champion at the time when this run was started."""
        return stage_ref_of(self.champion, self.connections) if self.champion else None

    def promote_if_better(
        self,
        candidate: StageRef,
        evaluation: StageRef,
        reward_model: StageRef | None,
        *,
        who: str | None = None,
        why: str | None = None,
    ) -> bool:
        """Judge the candidate against the champion and make it champion if the evidence suffices.

        The first champion has to beat the baseline, which is the SFT policy; later ones must not be
        beaten by it either.
        If the champion moves meanwhile, the candidate is judged again, against the new one. If the
        preset asks for an approval, the run is suspended until a person answers.

        Args:
            candidate: a policy.
            evaluation: its evaluation beside the baseline.
            reward_model: for its evaluation beside the champion, if that needs one.
            who: decides, for the ledger; None says the flow.
            why: for the ledger; None says what the candidate beat.

        Returns:
            Whether the candidate is champion at the end.

        Raises:
            ConflictError: if during every judgement the champion changed or another candidate was
                judged.
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
            match, verdict = self._judge(champion, candidate, evaluation, reward_model)
            decision = Decision(
                based_on=based_on,
                evidence=verdict,
                match=match,
                who=who or self.flow,
                why=why or self._why(verdict, champion),
            )
            if verdict.passed and self.config.promotion.approval.required:
                decision = self._approved(version, decision)
            self.decision = decision
            try:
                self.is_champion = promote(self.connections, self.policy_name, version, decision)
            except ConflictError as error:
                get_run_logger().warning("judging again: %s", error)
            else:
                return self.is_champion
        raise ConflictError(
            f"the champion of {self.policy_name} changed, or another candidate was judged, during "
            f"each of {JUDGEMENTS} comparisons; run the flow again"
        )

    def _allowances(self, step: str, config: StageConfig) -> tuple[Allowance, ...]:
        return allowances_for(
            step,
            config,
            self.config.budget,
            store=self.connections.store,
            before=self.refs.values(),
            since=self.began,
        )

    def _why(self, verdict: Verdict, champion: ModelVersionRef | None) -> str:
        rival = champion.uri if champion else "the first policy"
        return f"{self.flow}: {RELATIONS[verdict.outcome]} {rival}"

    @property
    def _evaluation(self) -> EvaluationConfig:
        if self.config.evaluation is None:
            raise ConfigError(
                f"the preset {self.config.name} has no block `evaluation`, so nothing can be "
                "judged; add it"
            )
        return self.config.evaluation

    def _as_candidate(self, candidate: StageRef) -> int:
        marked = register(candidate, self.connections, self.config.name, is_candidate=True)
        if marked.model_version is None:
            raise ConfigError(f"step '{candidate.step}' made no policy, so it cannot be promoted")
        return marked.model_version

    def _judge(
        self,
        champion: ModelVersionRef | None,
        candidate: StageRef,
        evaluation: StageRef,
        reward_model: StageRef | None,
    ) -> tuple[Match, Verdict]:
        """Ask the gate, and keep its verdict for the report."""
        against_champion = self._against(champion, candidate, reward_model)
        match = Match(
            opponent=champion.digest if champion else "none",
            prompts=digest_of_prompts(self._evaluation),
            evaluation=(against_champion or evaluation).digest,
        )
        store, sources = self.connections.store, sources_of_prompts(self._evaluation)
        verdict = judge(
            evidence_metrics(evaluation, against_champion),
            self.config.promotion,
            attempt=count_attempts(self.connections, self.policy_name, match),
            dependent_judge=uses_of_judge(self.config),
            responses=read_responses(store, against_champion or evaluation, sources),
            has_champion=champion is not None,
        )
        self.verdict = verdict
        self.against = "the champion" if champion else "the first policy"
        return match, verdict

    def _approved(self, version: int, decision: Decision) -> Decision:
        """Ask a person, once for each match, and return the decision with the answer."""
        about = f"**{self.policy_name}/{version}** has passed the gate against {self.against}."
        self.decision = None  # the report says that it waits
        question = question_of(about, decision.evidence, self.report(self) if self.report else "")
        return with_answer(decision, question, self.config.promotion.approval)

    def _against(
        self, champion: ModelVersionRef | None, candidate: StageRef, reward_model: StageRef | None
    ) -> StageRef | None:
        if champion is None:
            return None
        baseline = stage_ref_of(champion, self.connections)
        return self.run(
            MATCH,
            self._evaluation,
            policy=candidate,
            baseline=baseline,
            reward_model=reward_model,
        )
