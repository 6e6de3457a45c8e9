"""What a real Prefect server does by itself with runs that are lost or have crashed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.states import Crashed, Running

from flows.cli.automations import AUTO_RESUME_TAG, crashed_runs_resume, lost_runs_crash
from tests.flows.waiting import wait_until

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]


@flow
def nothing() -> None:
    """Is never run: these tests tell the server what a worker would."""


@pytest.fixture
def with_automations(client: SyncPrefectClient) -> Iterator[None]:
    """Both automations and no others: those of other tests would act on the same runs, too."""
    others = [each for each in client.read_automations() if each.enabled]
    for other in others:
        client.pause_automation(other.id)
    wanted = (lost_runs_crash(), crashed_runs_resume())
    ids = [
        client.create_automation(each.model_copy(update={"name": f"test of {each.name}"}))
        for each in wanted
    ]
    time.sleep(2)  # the server's own services learn of a new automation by an event
    yield
    for automation in ids:
        client.delete_automation(automation)
    for other in others:
        client.resume_automation(other.id)


def start(client: SyncPrefectClient, *tags: str) -> UUID:
    """Start a run of a deployment, which has no worker: only such a run can be started again."""
    deployment = client.create_deployment(client.create_flow(nothing), "tested")
    run = client.create_flow_run_from_deployment(deployment, tags=tags)
    client.set_flow_run_state(run.id, Running(), force=True)
    return run.id


def beat(client: SyncPrefectClient, run: UUID, seconds_ago: float) -> None:
    """Send the heartbeat that a live flow process sends every 30 seconds."""
    event = {
        "id": str(uuid4()),
        "occurred": (datetime.now(UTC) - timedelta(seconds=seconds_ago)).isoformat(),
        "event": "prefect.flow-run.heartbeat",
        "resource": {"prefect.resource.id": f"prefect.flow-run.{run}"},
    }
    client.request("POST", "/events", json=[event])


def names_of(client: SyncPrefectClient, run: UUID) -> list[str | None]:
    states = client.read_flow_run_states(run)
    return [state.name for state in sorted(states, key=lambda state: state.timestamp)][-3:]


@pytest.mark.usefixtures("with_automations")
def test_a_crashed_run_that_wants_it_starts_again_and_one_that_does_not_stays_crashed(client):
    plain, wants_it = start(client), start(client, AUTO_RESUME_TAG)
    crashed_at = time.monotonic()
    for run in (plain, wants_it):
        client.set_flow_run_state(run, Crashed(message="its worker died"), force=True)

    wait_until(lambda: client.read_flow_run(wants_it).state_name == "AwaitingRetry")

    assert time.monotonic() - crashed_at > 9  # a worker's late report has 10 s to arrive
    assert client.read_flow_run(wants_it).state.message == "Resumed after a crash."
    assert names_of(client, wants_it) == ["Running", "Crashed", "AwaitingRetry"]
    assert client.read_flow_run(plain).state_name == "Crashed"


@pytest.mark.usefixtures("with_automations")
def test_a_run_without_a_heartbeat_for_90_seconds_crashes_and_is_resumed_a_live_one_goes_on(client):
    live, lost = start(client), start(client, AUTO_RESUME_TAG)
    beat(client, live, seconds_ago=0)
    for _ in range(4):  # a busy server may not have loaded its new automation at the first one
        beat(client, lost, seconds_ago=95)
        with suppress(TimeoutError):
            wait_until(lambda: client.read_flow_run(lost).state_name != "Running", seconds=30)
            break
    wait_until(lambda: client.read_flow_run(lost).state_name == "AwaitingRetry")

    states = client.read_flow_run_states(lost)
    (crash,) = (state for state in states if state.name == "Crashed")
    assert crash.message == "No heartbeat for 90 seconds."
    assert client.read_flow_run(live).state_name == "Running"
