"""A promotion that a person must approve: a suspended run of a real Prefect server."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import pytest
from prefect import Flow, flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.exceptions import Pause
from prefect.flow_engine import run_flow
from prefect.states import Pending
from typer.testing import Result

from flows.answer import answer_approval
from flows.config.presets import load_config
from flows.raft import raft
from flows.raft import steps as raft_steps
from flows.recipe.approval import EXPIRY_DEPLOYMENT, is_waiting
from flows.recipe.schedule import reason_to_skip
from tasks.connections import Connections
from tasks.ledger import history
from tasks.versions import Entry
from tests.flows.finished import Finisher
from tests.flows.waiting import wait_until

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]

Ratchet = Callable[..., Result]


class Waiting:
    """A run of `raft` whose steps are done, and which waits for an approval."""

    def __init__(self, client: SyncPrefectClient, connections: Connections) -> None:
        self.client, self.connections = client, connections
        self.lifecycle = f"tiny-{uuid.uuid4().hex[:8]}"
        approval = {"required": True, "expires_hours": 2.0}
        overrides = {
            "name": self.lifecycle,
            "raft": {"rounds": 1},
            "promotion": {"approval": approval},
        }
        raft_steps(Finisher(load_config("tiny", overrides), connections, None))
        parameters = {"preset": "tiny", "overrides": overrides}
        self.id = make_run(client, raft, self.lifecycle, parameters).id
        self.go_on()

    @property
    def run(self) -> FlowRun:
        return self.client.read_flow_run(self.id)

    def go_on(self) -> None:
        """Do what a worker does with a run that is due: start its flow from the first line."""
        self.client.set_flow_run_state(self.id, Pending(), force=True)
        with suppress(Pause):  # raised to end the process of a run that is suspended
            run_flow(raft, flow_run=self.run, return_type="state")

    def entries(self) -> list[Entry]:
        return self.connections.registry.models.entries(f"{self.lifecycle}.policy.promotions")

    def champions(self) -> list[int]:
        return [p.target for p in history(self.connections.registry, f"{self.lifecycle}.policy")]


def make_run(
    client: SyncPrefectClient, flow: Flow[..., object], name: str, parameters: dict[str, object]
) -> FlowRun:
    flow_id = client.create_flow(flow)
    deployment = client.create_deployment(
        flow_id, name, entrypoint="flows/raft.py:raft", enforce_parameter_schema=False
    )
    return client.create_flow_run_from_deployment(deployment, parameters=parameters, name=name)


@pytest.fixture
def waiting(client: SyncPrefectClient, connections: Connections) -> Waiting:
    flow_id = client.create_flow(answer_approval)
    client.create_deployment(flow_id, "default", entrypoint="flows/answer.py:answer_approval")
    return Waiting(client, connections)


def test_a_run_waits_for_a_person_whose_answer_makes_the_champion(
    waiting: Waiting, ratchet: Ratchet
) -> None:
    assert (waiting.run.state_name, waiting.champions()) == ("Suspended", [])
    assert waiting.entries() == []  # nothing is decided yet
    form = inputs_of(waiting)
    assert set(form["schema"]["properties"]) == {"answer", "name", "reason"}
    assert form["schema"]["properties"]["answer"]["enum"] == ["approve", "hold", "reject"]
    assert form["schema"]["properties"]["name"]["minLength"] == 1
    assert "has passed the gate against the first policy" in form["description"]
    assert re.search(
        r"^- win_rate_low: 0\.\d+, expected > 0\.5$", form["description"], re.MULTILINE
    )
    assert "[The report](http" in form["description"]

    refused = ratchet("approve", waiting.id, "--name", "ann", "--reason", " ")
    assert (refused.exit_code, waiting.run.state_name) == (1, "Suspended")
    assert "needs the name of a person and a reason" in refused.stderr

    told = ratchet("approve", waiting.id, "--name", "ann", "--reason", "it is polite")
    assert told.exit_code == 0, told.output
    assert "is approved" in told.stdout
    waiting.go_on()
    assert waiting.run.state_name == "Completed"
    assert waiting.champions() == [2]
    (entry,) = waiting.entries()
    assert (entry.tags["verdict"], entry.tags["answer"]) == ("promote", "approve")
    assert (entry.tags["decided_by"], entry.tags["reason"]) == ("ann", "it is polite")
    shown = ratchet("watch", waiting.id)  # its report is in another store than the home's
    assert shown.exit_code == 0, shown.output

    again = ratchet("approve", waiting.id, "--name", "ann", "--reason", "once more")
    assert again.exit_code == 1
    assert "does not wait for this approval" in again.stderr


def test_a_person_who_rejects_leaves_the_candidate_with_name_and_reason(
    waiting: Waiting, ratchet: Ratchet
) -> None:
    both = ratchet(
        "approve", waiting.lifecycle, "--name", "bo", "--reason", "x", "--hold", "--reject"
    )
    assert both.exit_code == 1
    assert "expected --reject or --hold, found both" in both.stderr
    told = ratchet("approve", waiting.id, "--name", "bo", "--reason", "rude", "--reject")
    assert told.exit_code == 0, told.output
    waiting.go_on()
    assert waiting.run.state_name == "Completed"
    assert waiting.champions() == []
    (entry,) = waiting.entries()
    assert (entry.tags["verdict"], entry.tags["decided_by"]) == ("reject", "bo")
    version = waiting.connections.registry.models.resolve(f"models:/{waiting.lifecycle}.policy/2")
    assert version.version == 2


def test_an_answer_that_nobody_gives_in_time_holds_the_candidate(
    waiting: Waiting, client: SyncPrefectClient
) -> None:
    (planned,) = expiries_of(waiting)
    details = planned.state.state_details
    assert details.scheduled_time is not None
    assert waiting.run.state is not None
    hours = (details.scheduled_time - waiting.run.state.timestamp).total_seconds() / 3600
    assert hours == pytest.approx(2.0, abs=0.1)

    client.set_flow_run_state(planned.id, Pending(), force=True)
    run_flow(answer_approval, flow_run=client.read_flow_run(planned.id), return_type="state")
    waiting.go_on()
    assert (waiting.run.state_name, waiting.champions()) == ("Completed", [])
    (entry,) = waiting.entries()
    assert (entry.tags["verdict"], entry.tags["decided_by"]) == ("hold", "nobody")
    assert entry.tags["reason"] == "nobody answered within 2 hours"

    # Late, or for a question that is no longer asked: nothing happens.
    client.set_flow_run_state(planned.id, Pending(), force=True)
    late = run_flow(answer_approval, flow_run=client.read_flow_run(planned.id), return_type="state")
    assert late.name == "Skipped"
    assert len(waiting.entries()) == 1


@flow
def round_of_a_schedule(preset: str) -> str:
    """Asks what a scheduled round asks before its first step."""
    del preset
    return reason_to_skip() or "it begins"


def test_a_scheduled_round_is_skipped_while_a_candidate_waits(
    waiting: Waiting, client: SyncPrefectClient, ratchet: Ratchet
) -> None:
    deployment = waiting.run.deployment_id
    assert deployment is not None
    daily = DeploymentScheduleCreate(
        schedule=IntervalSchedule(interval=timedelta(days=1)),
        active=True,
        parameters={"preset": "tiny"},
    )
    client.create_deployment_schedules(deployment, [daily])

    def scheduled() -> list[FlowRun]:
        of_it = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[deployment]))
        runs = client.read_flow_runs(flow_run_filter=of_it)
        return [run for run in runs if run.auto_scheduled]

    wait_until(lambda: len(scheduled()) >= 2)
    first, second = scheduled()[:2]
    assert ask_before_its_first_step(client, first) == (
        f"there is no new champion yet: the candidate of {waiting.lifecycle} waits for an answer "
        f"(`ratchet approve {str(waiting.id)[:8]}`)"
    )
    told = ratchet("approve", waiting.id, "--name", "bo", "--reason", "rude", "--reject")
    assert told.exit_code == 0, told.output
    waiting.go_on()
    assert (
        ask_before_its_first_step(client, second) == "it begins"
    )  # from the same champion, with new responses


def ask_before_its_first_step(client: SyncPrefectClient, run: FlowRun) -> str:
    client.set_flow_run_state(run.id, Pending(), force=True)
    due = client.read_flow_run(run.id)
    return run_flow(round_of_a_schedule, flow_run=due, parameters=run.parameters)


def test_a_run_without_a_deployment_cannot_wait_and_says_so(
    waiting: Waiting,
) -> None:
    overrides = {
        "name": waiting.lifecycle,
        "raft": {"rounds": 1},
        "promotion": {"approval": {"required": True}},
    }
    state = raft("tiny", overrides=overrides, return_state=True)
    assert state.is_failed()
    assert "only a run of a deployment can be started again" in str(state.message)


def inputs_of(waiting: Waiting) -> dict[str, object]:
    """The form that Prefect's page shows for a suspended run."""
    state = waiting.run.state
    assert state is not None
    assert is_waiting(waiting.run)
    keys = state.state_details.run_input_keyset
    assert keys is not None
    read = waiting.client.read_flow_run_input
    return {name: json.loads(read(waiting.id, keys[name])) for name in ("schema", "description")}


def expiries_of(waiting: Waiting) -> list[FlowRun]:
    """The runs of the flow `answer` that are planned for the run."""
    found = waiting.client.read_flow_runs(limit=200)
    return [run for run in found if run.parameters.get("run") == str(waiting.id)]


def test_the_deployment_that_answers_in_place_of_a_person_is_the_one_that_is_deployed() -> None:
    assert f"{answer_approval.name}/default" == EXPIRY_DEPLOYMENT
