"""Answer a run that waits for an approval; a run of this flow holds what nobody has answered."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.recipe.approval import Approval, answer_run, is_waiting


@flow(name="answer", flow_run_name="{answer} {run}")
def answer_approval(
    run: UUID,
    answer: Literal["approve", "hold", "reject"],
    name: str,
    reason: str,
    key: str | None = None,
) -> State:
    """Answer a suspended run, if it still waits.

    Args:
        run: id of the suspended flow run.
        answer: approve, hold or reject.
        name: of the person who answers, for the ledger.
        reason: why, for the ledger.
        key: of the question; None answers the present one.

    Returns:
        The state `Skipped` if the run does not wait for this answer any more.
    """
    with get_client(sync_client=True) as client:
        waiting = client.read_flow_run(run)
        if not is_waiting(waiting, key):
            told = f"{waiting.name} is {waiting.state_name} and does not wait for this answer"
            return Completed(name="Skipped", message=told)
        answer_run(client, waiting, Approval(answer=answer, name=name, reason=reason), key)
    get_run_logger().info("%s: %s, by %s: %s", waiting.name, answer, name, reason)
    return Completed(message=f"{waiting.name}: {answer}")
