"""`ratchet logs`: the log of a run, which Prefect keeps, or of a step, which is in the store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from logging import getLevelName
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.client.schemas.sorting import LogSort

from flows.cli import terminal
from flows.cli.find_runs import PAGE, find_run, short_id
from flows.cli.session import Session, open_session
from flows.recipe.outline import require_steps
from stages.attempt import Attempt
from tasks.follow import LogTail
from tasks.run_steps import attempt_of_step, steps_of_run
from training_core.errors import ConfigError

POLL_SECONDS = 1.0


def show_logs(named: str, step: str | None, *, is_followed: bool) -> None:
    """Print a log.

    Args:
        named: the run.
        step: print the log of this step's newest attempt instead of the run's.
        is_followed: go on until the run ends.

    Raises:
        ConfigError: if there is no such run or step, or the step has no log yet.
    """
    with open_session() as session:
        run = find_run(session.client, named)
        lines = (
            _RunLog(session.client, run.id)
            if step is None
            else LogTail(_attempt(session, run.id, step).log)
        )
        try:
            while True:
                has_ended = not is_followed or _has_ended(session.client, run.id)
                for line in lines.new_lines():  # after the question, so that none is missed
                    terminal.echo(line)
                if has_ended:
                    return
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            return


class _RunLog:
    """The lines of a run that Prefect has got since the last call."""

    def __init__(self, client: SyncPrefectClient, run_id: UUID) -> None:
        self._client, self._shown = client, 0
        self._wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run_id]))

    def new_lines(self) -> Iterator[str]:
        while page := self._client.read_logs(
            self._wanted, limit=PAGE, offset=self._shown, sort=LogSort.TIMESTAMP_ASC
        ):
            for entry in page:
                at = f"{entry.timestamp.astimezone():%H:%M:%S}"
                yield f"{at} {getLevelName(entry.level):7} {entry.message}"
            self._shown += len(page)


def _attempt(session: Session, run_id: UUID, step: str) -> Attempt:
    known = steps_of_run(session.store, str(run_id))
    require_steps([step], list(known))
    attempt = attempt_of_step(session.store, known[step])
    if attempt is None:
        raise ConfigError(f"step '{step}' of {short_id(run_id)} has no log yet; wait until it runs")
    return attempt


def _has_ended(client: SyncPrefectClient, run_id: UUID) -> bool:
    state = client.read_flow_run(run_id).state
    return state is not None and state.is_final()
