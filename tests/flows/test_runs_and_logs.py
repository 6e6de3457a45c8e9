"""`ratchet runs`, `cancel`, `retry` and `logs` with a real Prefect server."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import UUID

import pytest
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed, Scheduled

from flows.cli import show_logs
from flows.full_rlhf import full_rlhf
from tests.flows.made_runs import (
    deploy_flow,
    make_attempt,
    make_run,
    make_step,
)

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]

# ---------------------------------------------------------------------------- which run


def test_a_run_is_found_by_id_start_of_id_and_name_and_the_newest_without_one(
    client, ratchet, run_name
):
    make_run(client, run_name, Failed())
    newer = make_run(client, run_name, Completed())
    client.create_flow_run(full_rlhf, name=f"{run_name}-later", state=later())
    for named in ([str(newer.id)], [str(newer.id)[:8].upper()], [run_name], []):
        result = ratchet("watch", *named)
        assert f"id       {newer.id}" in result.stdout, named


def later() -> State:
    """The state of a run that a schedule starts tomorrow."""
    return Scheduled(scheduled_time=datetime.now(UTC) + timedelta(days=1))


@pytest.mark.parametrize("named", ["no-such-run", "ffffffff-0000", "fff", str(UUID(int=7))])
def test_an_unknown_run_is_an_error_that_names_ratchet_runs(ratchet, named):
    result = ratchet("watch", named)
    assert result.exit_code == 1
    assert f"found '{named}'; `ratchet runs` lists them" in result.stderr


def test_the_table_of_runs_has_the_newest_first_and_their_steps(client, ratchet, run_name):
    failed = make_run(client, f"{run_name}-a")
    make_step(client, failed.id, "sft", Completed())
    make_step(client, failed.id, "dpo_1", Failed())
    client.set_flow_run_state(failed.id, Failed(), force=True)
    running = make_run(client, f"{run_name}-b")
    make_step(client, running.id, "sft", Completed())
    make_step(client, running.id, "ppo")
    done = make_run(client, f"{run_name}-c", Completed())
    result = ratchet("runs", "--limit", 3)
    rows = [line.split() for line in result.stdout.splitlines()[1:]]
    assert [row[:4] for row in rows] == [
        [str(done.id)[:8], f"{run_name}-c", "full-rlhf", "Completed"],
        [str(running.id)[:8], f"{run_name}-b", "full-rlhf", "Running"],
        [str(failed.id)[:8], f"{run_name}-a", "full-rlhf", "Failed"],
    ]
    assert [row[-1] for row in rows] == ["s", "ppo", "dpo_1"]


# ---------------------------------------------------------------------------- cancel, retry, logs


def test_cancel_asks_the_flow_to_end(client, ratchet, run_name):
    run = make_run(client, run_name)
    assert ratchet("cancel", run_name).exit_code == 0
    assert client.read_flow_run(run.id).state_name in ("Cancelling", "Cancelled")


def test_what_has_ended_cannot_be_cancelled(client, ratchet, run_name):
    make_run(client, run_name, Cancelled())
    result = ratchet("cancel", run_name)
    assert result.exit_code == 1
    assert "is Cancelled, so there is nothing to cancel" in result.stderr


@pytest.mark.parametrize("ended", [Failed(), Cancelled()])
def test_retry_schedules_a_run_again(client, ratchet, run_name, ended):
    deployment = deploy_flow(client, "tiny")
    run = client.create_flow_run_from_deployment(deployment, name=run_name)
    client.set_flow_run_state(run.id, ended, force=True)
    result = ratchet("retry", run_name)
    assert result.exit_code == 0, result.output
    assert client.read_flow_run(run.id).state_name == "AwaitingRetry"


@pytest.mark.parametrize("state", [Completed(), None])
def test_only_what_has_ended_without_success_is_retried(client, ratchet, run_name, state):
    run = make_run(client, run_name, state)
    result = ratchet("retry", run_name)
    assert result.exit_code == 1
    assert "so there is nothing to retry" in result.stderr
    assert client.read_flow_run(run.id).state_name == ("Completed" if state else "Running")


def test_the_log_of_a_run_is_that_of_prefect_in_its_order(client, ratchet, run_name):
    run = make_run(client, run_name, Completed())
    client.create_logs(
        [
            {
                "name": "prefect.flow_runs",
                "level": 30 if i == 249 else 20,
                "message": f"line {i}\x1b[2J",
                "timestamp": f"2026-01-01T00:{i // 60:02d}:{i % 60:02d}+00:00",
                "flow_run_id": str(run.id),
            }
            for i in range(250)
        ]
    )
    for arguments in ([run_name], [run_name, "--follow"]):
        result = ratchet("logs", *arguments)
        assert result.exit_code == 0, result.output
        lines = result.stdout.splitlines()
        assert [re.sub(r"^\S+ ", "", line) for line in lines[-2:]] == [
            r"INFO    line 248\x1b[2J",
            r"WARNING line 249\x1b[2J",
        ]
        assert len(lines) == 250


def test_the_log_of_a_step_is_that_of_its_newest_attempt(client, ratchet, home_store, run_name):
    run = make_run(client, run_name)
    attempt = make_attempt(home_store, run.id, "sft")
    newer = home_store.attempt(attempt.stage, attempt.key, "a2")
    newer.directory.mkdir()
    newer.log.write_text("a2\n")
    assert ratchet("logs", run_name, "sft").stdout == "a2\n"


def test_a_step_that_a_run_has_not_is_an_error_that_names_the_others(
    client, ratchet, home_store, run_name
):
    run = make_run(client, run_name)
    make_attempt(home_store, run.id, "dpo_1")
    result = ratchet("logs", run_name, "dpo_2")
    assert result.exit_code == 1
    assert "unknown step 'dpo_2'; did you mean 'dpo_1'? there are: dpo_1" in result.stderr


def test_a_followed_log_goes_on_until_the_run_ends(
    client, ratchet, home_store, run_name, monkeypatch
):
    run = make_run(client, run_name)
    attempt = make_attempt(home_store, run.id, "sft")

    def write_and_end(_: float) -> None:
        with attempt.log.open("a") as file:
            file.write("last line\n")
        client.set_flow_run_state(run.id, Completed(), force=True)

    monkeypatch.setattr(show_logs, "time", SimpleNamespace(sleep=write_and_end))
    assert ratchet("logs", run_name, "sft", "--follow").stdout == "first line of sft\nlast line\n"
