"""Every process of a lifecycle is killed once, then all at once, and nobody helps but `ratchet up`.

A short form of `make chaos`, with kills at chosen steps. What `benchmarks/disturbed.py` calls a
role is killed with SIGKILL, while the step named beside it has a process.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.settings import PREFECT_API_URL, temporary_settings

from benchmarks.chaos import require_nothing_left
from benchmarks.disturbed import STEPS, Machine, redone, services, wait_for
from flows.local_services.processes import root_of
from stages.attempt import Attempt
from tasks.ledger import history
from tasks.registry import Registry
from tasks.run_steps import steps_of_run

pytestmark = [pytest.mark.lifecycle, pytest.mark.drill]

KILLS = (
    ("sft", "stage"),
    ("reward_model", "ray"),
    ("rejection_sampling", "worker"),
    ("rejection_sft", "prefect"),
    ("preference_pairs_1", "mlflow"),
    ("dpo_1", "flow"),
    ("ppo", "engine"),
    ("ppo", "gcs_server"),
    ("evaluation", "everything"),
)
PATIENCE_SECONDS = 900


@dataclass(frozen=True)
class Drill:
    """A lifecycle that was made undisturbed by two runs at once, and then with kills.

    Attributes:
        machine: the services.
        peaceful: the runs that nobody disturbed.
        digests: of their steps.
        made: number of attempts at each stage key after these runs.
        run: the disturbed run.
        attempts: those of the disturbed run.
    """

    machine: Machine
    peaceful: tuple[str, str]
    digests: dict[str, str]
    made: Counter[Path]
    run: str
    attempts: list[Attempt]


@pytest.fixture(scope="module")
def drill() -> Iterator[Drill]:
    with (
        tempfile.TemporaryDirectory(prefix="ratchet-", dir="/tmp") as folder,
        services(Path(folder, "h")) as machine,
    ):
        peaceful = (machine.start(), machine.start())
        for each in peaceful:
            wait_for_end(machine, each)
        known = machine.attempts()
        digests = machine.digests_of(peaceful[0])
        run = machine.start(force=STEPS)
        for step, role in KILLS:
            wait_for(lambda step=step: is_at(machine, run, step), PATIENCE_SECONDS, step)
            strike(machine, role)
        wait_for_end(machine, run)
        new = {each.directory for each in machine.attempts()} - {each.directory for each in known}
        made = Counter(each.directory.parent for each in known)
        yield Drill(machine, peaceful, digests, made, run, [Attempt(each) for each in sorted(new)])


def wait_for_end(machine: Machine, run: str) -> None:
    def has_ended() -> bool:
        found = machine.state_of(run)
        state = found["state"] if found else {"type": ""}
        assert state["type"] not in ("FAILED", "CANCELLED"), state
        return state["type"] == "COMPLETED"

    wait_for(has_ended, PATIENCE_SECONDS, f"the end of {run}")


def is_at(machine: Machine, run: str, step: str) -> bool:
    """Whether a step has begun; two that take longer have saved a checkpoint of this run, too."""
    found = steps_of_run(machine.store, run).get(step)
    if found is None:
        return False
    newest = next(iter(machine.store.attempts(found.stage, found.key)), None)
    if newest is None or step not in ("sft", "ppo"):
        return newest is not None
    return newest.number > 1 and any(newest.checkpoints.glob("step-*/COMPLETE"))


def strike(machine: Machine, role: str) -> None:
    """Kill a role; after everything was killed, do what a person does after a loss of power."""
    if role == "everything":
        machine.lose_power()
        machine.ratchet("up")
        return
    wait_for(lambda: machine.kill(role), 60, role)
    service = {"gcs_server": "ray"}.get(role, role)
    if service in ("ray", "prefect", "mlflow", "worker"):
        record = machine.record(service)

        def is_back() -> bool:
            now = machine.record(service)
            return now.pid != record.pid and root_of(now) is not None and bool(now.restarts)

        wait_for(is_back, PATIENCE_SECONDS, f"{service} is back")


def test_every_result_equals_the_undisturbed_one(drill: Drill) -> None:
    assert set(drill.digests) == set(STEPS)
    assert all(drill.digests.values())
    assert drill.machine.digests_of(drill.run) == drill.digests


def test_two_runs_of_the_same_keys_at_once_made_each_stage_once(drill: Drill) -> None:
    first, second = drill.peaceful
    assert drill.machine.digests_of(second) == drill.machine.digests_of(first)
    assert set(drill.made.values()) == {1}


def test_of_two_promotions_at_once_one_has_moved_the_champion(drill: Drill) -> None:
    environment = drill.machine.environment()
    registry = Registry(environment["MLFLOW_TRACKING_URI"], drill.machine.store)
    promoted = [entry for entry in history(registry, "tiny.policy") if entry.verdict == "promote"]
    assert len(promoted) == 1


def test_a_killed_stage_goes_on_from_its_last_checkpoint(drill: Drill) -> None:
    lost = {row.job.split("-")[0]: row for row in redone(drill.attempts)}
    assert "sft" in lost
    for row in lost.values():
        assert row.steps <= row.interval or row.interval == 0, row


def test_no_job_process_or_mark_is_left(drill: Drill) -> None:
    require_nothing_left(drill.machine)


def test_no_task_is_left_running(drill: Drill) -> None:
    url = drill.machine.environment()["PREFECT_API_URL"]
    with temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as client:
        of_run = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(drill.run)]))
        tasks = client.read_task_runs(flow_run_filter=of_run)
    assert tasks
    assert [task.name for task in tasks if task.state is None or not task.state.is_final()] == []
