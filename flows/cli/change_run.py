"""`ratchet cancel` and `ratchet retry`: what the buttons of Prefect's page do."""

from __future__ import annotations

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.responses import SetStateStatus
from prefect.states import Cancelling, Scheduled

from flows.cli import terminal
from flows.cli.find_runs import find_run, short_id
from flows.cli.session import open_session
from training_core.errors import ConfigError


def cancel(named: str) -> None:
    """Cancel a run that goes on, and say so.

    Raises:
        ConfigError: if there is no such run, or it has ended.
    """
    with open_session() as session:
        run = find_run(session.client, named)
        cancel_run(session.client, run)
        terminal.echo(f"{run.name} ({short_id(run.id)}) is cancelled; finished steps are kept")


def retry(named: str) -> None:
    """Start a run again that has ended without success, and say so.

    Raises:
        ConfigError: if there is no such run, or it goes on or has completed.
    """
    with open_session() as session:
        run = find_run(session.client, named)
        retry_run(session.client, run)
        short = short_id(run.id)
        terminal.echo(
            f"{run.name} ({short}) is scheduled again; finished steps are reused; look at it with "
            f"`ratchet watch {short}`"
        )


def cancel_run(client: SyncPrefectClient, run: FlowRun) -> None:
    """Cancel a run, and with it the jobs that no other run waits for.

    Raises:
        ConfigError: if it has ended.
    """
    if run.state is not None and run.state.is_final():
        raise ConfigError(f"{_told(run)}, so there is nothing to cancel")
    _set(client, run, Cancelling())


def retry_run(client: SyncPrefectClient, run: FlowRun) -> None:
    """Start a run again, with the inputs that it began with.

    Raises:
        ConfigError: if it goes on or has completed.
    """
    if run.state is None or not run.state.is_final():
        raise ConfigError(f"{_told(run)}, so there is nothing to retry; `ratchet cancel` ends it")
    if run.state.is_completed():
        raise ConfigError(f"{_told(run)}, so there is nothing to retry; `ratchet run` starts anew")
    _set(client, run, Scheduled(name="AwaitingRetry", message="Retry from the terminal"))


def _set(client: SyncPrefectClient, run: FlowRun, state: State) -> None:
    answer = client.set_flow_run_state(run.id, state)
    if answer.status is not SetStateStatus.ACCEPT:
        reason = getattr(answer.details, "reason", None) or answer.status.value
        raise ConfigError(
            f"Prefect does not make {run.name} ({short_id(run.id)}) {state.name}: {reason}; look "
            f"at it with `ratchet watch {short_id(run.id)}`"
        )


def _told(run: FlowRun) -> str:
    return f"{run.name} ({short_id(run.id)}) is {run.state_name or 'unknown'}"
