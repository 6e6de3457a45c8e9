"""Approval of a promotion by a person: the flow run is suspended until somebody answers.

A suspended run has no process and holds no GPU. Prefect's page shows its form, and `ratchet
approve` gives the same answer. Then the run starts again from its first line, finds every step
done, judges again, and reads the answer. A question is about one match: if the champion has moved
meanwhile, the answer to the old question decides nothing, and the person is asked again.

A run of the deployment `answer/default`, which is scheduled for the end of the time, answers in
place of a person who does not. Prefect itself would only let the run fail.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import ClassVar
from uuid import UUID

from prefect import get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import SetStateStatus
from prefect.exceptions import ObjectNotFound
from prefect.flow_runs import suspend_flow_run
from prefect.input import RunInput
from prefect.runtime import deployment, flow_run
from prefect.states import Scheduled
from pydantic import ConfigDict, Field

from stages.runtime.stage_key import digest_of
from tasks.decisions import ApprovalAnswer, Decision
from tasks.gate import ApprovalConfig, Verdict, as_list
from training_core.errors import ConfigError

EXPIRY_DEPLOYMENT = "answer/default"
NOBODY = "nobody"
"""Who answers for a person who does not."""

KEY_LENGTH = 12
ASKED = "May it become champion?"
GRACE = timedelta(days=1)
"""After the end of the time Prefect lets the run fail, if no worker has answered until then."""


class Approval(RunInput):
    """The form of a suspended run: may the candidate become champion?"""

    model_config: ClassVar[ConfigDict] = ConfigDict(title="Approval", extra="forbid")

    answer: ApprovalAnswer = Field(
        title="Answer",
        description="approve: it becomes champion. hold: it stays a candidate, and may be judged "
        "again. reject: it stays a candidate.",
    )
    name: str = Field(title="Your name", description="For the ledger.", min_length=1)
    reason: str = Field(title="Reason", description="For the ledger.", min_length=1)


def question_of(about: str, evidence: Verdict, report: str) -> str:
    """Return what the form says above its fields, as Markdown.

    Args:
        about: the candidate, and what it was judged against.
        evidence: the gate's verdict.
        report: address or path of the report; empty if there is none.
    """
    where = f"[The report]({report})" if "://" in report else f"The report: `{report}`"
    parts = [about, *([where] if report else []), as_list(evidence), ASKED]
    return "\n\n".join(parts)


def require_deployment(config: ApprovalConfig) -> None:
    """Check that something can start this flow run again after it was suspended.

    Raises:
        ConfigError: if an approval is required and the run has no deployment.
    """
    if config.required and deployment.id is None:
        raise ConfigError(
            "promotion.approval.required suspends the run, and only a run of a deployment can be "
            "started again: start it with `ratchet run`, or leave `approval` out"
        )


def ask_for_approval(question: str, key: str, config: ApprovalConfig) -> Approval:
    """Suspend this flow run until a person answers; return the answer when it has started again.

    Args:
        question: what the form says above its fields, as Markdown.
        key: identifies the question: the same one is asked once.
        config: for how long the question stands.

    Raises:
        ConfigError: for an answer without a name or a reason.
    """
    with get_client(sync_client=True) as client:
        _plan_expiry(client, UUID(str(flow_run.id)), key, config)
    limit = timedelta(hours=config.expires_hours) + GRACE
    form = Approval.with_initial_data(description=question)
    given = suspend_flow_run(form, timeout=int(limit.total_seconds()), key=key)
    if not (given.name.strip() and given.reason.strip()):
        raise ConfigError(
            "expected an answer with a name and a reason, found a blank one; start the run again "
            "(`ratchet retry`) and answer with `ratchet approve`"
        )
    return given


def with_answer(decision: Decision, question: str, config: ApprovalConfig) -> Decision:
    """Ask a person about a decision, once for each match, and return it with the answer.

    Args:
        decision: that the gate has passed a candidate.
        question: see `question_of`.
        config: for how long the question stands.
    """
    key = digest_of(decision.match.model_dump())[:KEY_LENGTH]
    given = ask_for_approval(question, key, config)
    update = {"who": given.name, "why": given.reason, "answer": given.answer}
    return decision.model_copy(update=update)


def answer_run(
    client: SyncPrefectClient, run: FlowRun, approval: Approval, key: str | None = None
) -> None:
    """Answer a run that waits for an approval.

    Args:
        client: of the server.
        run: the run.
        approval: the answer.
        key: of the question that it answers; None answers the present one.

    Raises:
        ConfigError: if the run does not wait for an approval, or not for this one; if Prefect
            refuses the answer.
    """
    if not is_waiting(run, key):
        raise ConfigError(
            f"{run.name} ({str(run.id)[:8]}) is {run.state_name} and does not wait for this "
            "approval; `ratchet runs` shows the runs that are Suspended"
        )
    given = approval.model_dump(include={"answer", "name", "reason"})
    done = client.resume_flow_run(run.id, run_input=given)
    if done.status is not SetStateStatus.ACCEPT:
        reason = getattr(done.details, "reason", None) or done.status.value
        raise ConfigError(f"Prefect does not take the answer to {run.name}: {reason}; correct it")


def is_waiting(run: FlowRun, key: str | None = None) -> bool:
    """Whether a run is suspended until a person approves; with `key`, for this question."""
    state = run.state
    if state is None or not state.is_paused() or not state.state_details.run_input_keyset:
        return False
    return key is None or state.state_details.pause_key == key


def _plan_expiry(client: SyncPrefectClient, run_id: UUID, key: str, config: ApprovalConfig) -> None:
    """Schedule the run that answers at the end of the time, once for each question."""
    log = get_run_logger()
    try:
        expiry = client.read_deployment_by_name(EXPIRY_DEPLOYMENT)
    except ObjectNotFound:
        log.warning(
            "there is no deployment %s, so without an answer this run fails a day after its time; "
            "run `ratchet deploy`",
            EXPIRY_DEPLOYMENT,
        )
        return
    ends = datetime.now(UTC) + timedelta(hours=config.expires_hours)
    told = f"nobody answered within {config.expires_hours:g} hours"
    parameters = {"run": str(run_id), "answer": "hold", "name": NOBODY, "reason": told, "key": key}
    client.create_flow_run_from_deployment(
        expiry.id,
        parameters=parameters,
        state=Scheduled(scheduled_time=ends),
        name=f"end of the approval of {flow_run.name}",
        idempotency_key=f"{run_id}-{key}",
    )
