"""The runs of a flow run's stages are below its own run, once each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from real_services import client_of, runs_of

from tasks.registry import FlowRun, Registry

pytestmark = pytest.mark.services

FIRST = FlowRun("first", "full-rlhf", "tiny", started_at=1000.0)
SECOND = FlowRun("second", "raft", "tiny · ppo=null", started_at=2000.0)


def parent_of(run) -> str | None:
    return run.data.tags.get("mlflow.parentRunId")


def test_the_runs_of_all_stages_are_below_the_run_of_their_flow_run(registry, finish, lifecycle):
    sft, judge = finish("sft"), finish("reward_model", kind="reward_model")
    for manifest in (sft, judge):
        registry.register(manifest, lifecycle=lifecycle, flow_run=FIRST)

    (above, *_) = runs = runs_of(registry, lifecycle)

    assert {run.info.run_name: parent_of(run) for run in runs} == {
        "tiny": None,
        "sft": above.info.run_id,
        "reward_model": above.info.run_id,
    }
    assert (above.info.start_time, above.info.status) == (1_000_000, "RUNNING")
    assert above.data.tags["flow"] == "full-rlhf"


def test_a_retry_in_another_process_adds_no_run(registry, finish, lifecycle):
    sft, dpo = finish("sft"), finish("dpo-1")
    registry.register(sft, lifecycle=lifecycle, flow_run=FIRST)
    registry.flow_runs.end(lifecycle, FIRST.id, "FAILED")

    again = Registry(registry.mlflow.tracking_uri, registry.store)
    again.register(sft, lifecycle=lifecycle, flow_run=FIRST)
    again.register(dpo, lifecycle=lifecycle, flow_run=FIRST)

    above, *below = runs_of(registry, lifecycle)
    assert sorted(run.info.run_name for run in below) == ["dpo-1", "sft"]
    assert {parent_of(run) for run in below} == {above.info.run_id}
    assert above.info.status == "RUNNING"


def test_a_crash_before_the_run_was_completed_leaves_no_second_run(registry, finish, lifecycle):
    sft = finish("sft")
    run_id = registry.runs.run_for(
        lifecycle, "sft", "sft", sft.key, attempt=sft.attempt, flow_run=FIRST
    )

    ref = Registry(registry.mlflow.tracking_uri, registry.store).register(
        sft, lifecycle=lifecycle, flow_run=FIRST
    )

    assert ref.run_id == run_id
    assert len(runs_of(registry, lifecycle)) == 2  # with that of the flow run


def test_a_flow_run_that_reuses_a_stage_adds_no_run_of_it(registry, finish, lifecycle):
    sft, dpo = finish("sft"), finish("dpo-1")
    registry.register(sft, lifecycle=lifecycle, flow_run=FIRST)

    for manifest in (sft, dpo):
        registry.register(manifest, lifecycle=lifecycle, flow_run=SECOND)

    runs = {run.info.run_name: run for run in runs_of(registry, lifecycle)}
    assert len(runs) == len(runs_of(registry, lifecycle)) == 4
    assert parent_of(runs["sft"]) == runs["tiny"].info.run_id
    assert parent_of(runs["dpo-1"]) == runs["tiny · ppo=null"].info.run_id
    assert registry.run_of(sft, lifecycle) == runs["sft"].info.run_id
    (page,) = registry.runs.pages(lifecycle, {"sft": runs["sft"].info.run_id}).values()
    assert page.endswith(f"/runs/{runs['sft'].info.run_id}?workflowType=machine_learning")


def test_two_flow_processes_at_once_share_the_run_of_their_flow_run(
    registry, store, finish, lifecycle
):
    both_ready = Barrier(2)

    def register(manifest) -> str:
        own = Registry(registry.mlflow.tracking_uri, store)
        both_ready.wait()
        own.register(manifest, lifecycle=lifecycle, flow_run=FIRST)
        return own.flow_runs.run_for(lifecycle, FIRST)

    with ThreadPoolExecutor(2) as threads:
        one, two = threads.map(register, [finish("sft"), finish("dpo-1")])

    assert one == two
    assert len(runs_of(registry, lifecycle)) == 3


@pytest.mark.parametrize("status", ["FAILED", "KILLED", "FINISHED"])
def test_a_flow_run_without_a_report_ends_with_its_status(registry, finish, lifecycle, status):
    registry.flow_runs.end(lifecycle, FIRST.id, status)  # it has no run yet
    registry.register(finish("sft"), lifecycle=lifecycle, flow_run=FIRST)

    registry.flow_runs.end(lifecycle, FIRST.id, status)

    above, _ = runs_of(registry, lifecycle)
    assert client_of(registry).get_run(above.info.run_id).info.status == status
