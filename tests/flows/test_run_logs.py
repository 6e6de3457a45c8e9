"""The log of a failed flow run on a real server, as its page shows it."""

from __future__ import annotations

import logging
from uuid import UUID

import pytest
from prefect import flow, task
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import State

from flows.recipe.run_logs import LOGGERS
from flows.single_stage import stage
from tasks.failures import is_transient
from tests.flows.waiting import wait_until
from training_core.errors import DataError, TransientError

LINES = "rows.jsonl, row 3: expected a text in `prompt`, found 7\ncorrect the row, then press Retry"


@task(retries=1, retry_delay_seconds=0, retry_condition_fn=is_transient)
def broken(kind: type[Exception]) -> None:
    raise kind(LINES)


@flow
def broken_flow(kind: str) -> None:
    broken({"data": DataError, "away": TransientError, "bug": KeyError}[kind])


def log_of(client: SyncPrefectClient, run: UUID) -> str:
    """The lines that the server has, once the last ones have arrived, in whatever order."""
    of_run = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run]))

    def lines() -> list[str]:
        found = sorted(client.read_logs(of_run), key=lambda line: line.timestamp)
        return [line.message for line in found]

    last = ("Encountered exception during execution", "Finished in state Failed")
    wait_until(lambda: all(words in "\n".join(lines()) for words in last), seconds=60)
    return "\n".join(lines())


def run_of(state: State) -> UUID:
    assert state.is_failed()
    assert state.state_details.flow_run_id is not None
    return state.state_details.flow_run_id


@pytest.mark.services
@pytest.mark.parametrize("kind", ["data", "away"])
def test_a_foreseen_error_is_told_without_a_traceback(client, kind):
    state = broken_flow(kind, return_state=True)
    told = log_of(client, run_of(state))
    assert "Traceback" not in told
    assert f"Encountered exception during execution: {LINES}" in told
    assert LINES in state.message
    assert ("- Retries are exhausted" in told) == (kind == "away")


@pytest.mark.services
def test_a_bug_is_told_with_its_traceback(client):
    told = log_of(client, run_of(broken_flow("bug", return_state=True)))
    assert "Traceback" in told
    assert "raise kind(LINES)" in told


@pytest.mark.services
def test_an_error_before_the_first_step_is_told_briefly_too(client, monkeypatch):
    monkeypatch.delenv("RATCHET_STORE", raising=False)
    told = log_of(client, run_of(stage("ppo", return_state=True)))
    assert "must be set; `ratchet up` starts local services" in told
    assert "Traceback" not in told


@pytest.mark.parametrize("name", LOGGERS)
@pytest.mark.parametrize(("level", "expected"), [(logging.INFO, False), (logging.DEBUG, True)])
def test_the_traceback_is_there_only_at_level_debug(name, level, expected, caplog, monkeypatch):
    logger = logging.getLogger(name)
    monkeypatch.setattr(logger, "level", level)
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    logger._cache.clear()  # of levels
    try:
        raise DataError(LINES)
    except DataError:
        logger.exception("Execution exited with unexpected exception")
    logger._cache.clear()
    (record,) = {id(record): record for record in caplog.records}.values()
    assert record.getMessage() == f"Execution exited with unexpected exception: {LINES}"
    assert bool(record.exc_info) == expected
