"""`ratchet approve` and `ratchet rollback`: a person decides about a champion."""

from __future__ import annotations

from flows.cli import terminal
from flows.cli.find_runs import find_run, short_id
from flows.cli.session import open_session
from flows.model_use.named_model import connections_here
from flows.recipe.approval import Approval, answer_run
from tasks import ledger
from tasks.decisions import ApprovalAnswer, require_person
from training_core.errors import ConfigError

TOLD = {
    "approve": "is approved; its candidate becomes champion if no other has become it meanwhile",
    "hold": "is held; its candidate stays a candidate",
    "reject": "is rejected; its candidate stays a candidate",
}


def answer(named: str, given: ApprovalAnswer, name: str, reason: str) -> None:
    """Answer a run that waits for an approval, and say so.

    Args:
        named: name, id or start of the id of the run.
        given: the answer.
        name: of the person.
        reason: of the person.

    Raises:
        ConfigError: if there is no such run, it does not wait, or name or reason is blank.
    """
    require_person("an answer to an approval", name, reason)
    with open_session() as session:
        run = find_run(session.client, named)
        answer_run(session.client, run, Approval(answer=given, name=name, reason=reason))
        short = short_id(run.id)
        terminal.echo(
            f"{run.name} ({short}) {TOLD[given]}; look at it with `ratchet watch {short}`"
        )


def roll_back(lifecycle: str, number: int | None, name: str, reason: str) -> None:
    """Make a former champion the champion again, and say so.

    Args:
        lifecycle: e.g. `tiny`, for the model `tiny.policy`.
        number: of the version; None takes the champion before the present one.
        name: of the person.
        reason: of the person.

    Raises:
        ConfigError: if there is no such former champion, or name or reason is blank.
        ConflictError: if the champion changes meanwhile.
    """
    require_person("a rollback", name, reason)
    registry, model = connections_here().registry, f"{lifecycle}.policy"
    past = ledger.history(registry, model)
    targets = [promotion.target for promotion in past]
    former = [target for target in reversed(targets) if target != targets[-1]]
    if number is None and not former:
        raise ConfigError(
            f"{model} has had {'one champion' if past else 'no champion'} so far, so there is none "
            "to go back to; `ratchet lineage` shows what was decided about a version"
        )
    target = former[0] if number is None else number
    based_on = past[-1].number if past else 0
    ledger.rollback(registry, model, target, based_on=based_on, who=name, why=reason)
    terminal.echo(f"{model}/{target} is champion again; before it was {model}/{targets[-1]}")
