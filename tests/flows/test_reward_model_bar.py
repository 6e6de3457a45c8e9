"""No step of a flow optimises a policy for a reward model below its bar."""

from __future__ import annotations

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

from flows.config.presets import load_config
from flows.raft import raft
from flows.raft import steps as raft_steps
from tasks.connections import Connections
from tasks.ledger import champion
from tests.flows.finished import Finisher
from training_core.errors import AdmissionError

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]

BELOW = {"heldout_pairs": 64.0, "heldout_accuracy": 0.55, "heldout_accuracy_low": 0.43}


def test_a_flow_stops_before_it_optimises_for_a_reward_model_that_is_no_better_than_chance(
    client: SyncPrefectClient, connections: Connections
) -> None:
    overrides = {"name": "below-the-bar", "raft": {"rounds": 1}}
    measured = {"reward_model": BELOW}
    raft_steps(Finisher(load_config("tiny", overrides), connections, None, measured=measured))

    state = raft("tiny", overrides=overrides, return_state=True)
    assert state.is_failed()
    with pytest.raises(AdmissionError) as caught:
        state.result()
    told = str(caught.value)
    assert told.startswith("step 'rejection_sampling_1' does not start: the reward model of step")
    assert "expected the lower bound of the held-out accuracy above 0.5, found 0.43" in told
    run_id = state.state_details.flow_run_id
    tasks = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run_id])))
    assert not [task.name for task in tasks if "sampling" in task.name or "evaluation" in task.name]
    assert champion(connections.registry, "below-the-bar.policy") is None

    lowered = {**overrides, "reward_model": {"admission": {"required": False}}}
    assert raft("tiny", overrides=lowered, return_state=True).is_completed()
