"""What a flow run leaves in MLflow when it ends without a report."""

from __future__ import annotations

import logging

from prefect import Flow, State
from prefect.client.schemas.objects import FlowRun, StateType

from tasks.connections import connect
from training_core.errors import IntegrityError, TransientError
from training_core.strict_json import read_object

log = logging.getLogger("ratchet.flows")

STATUS = {StateType.COMPLETED: "FINISHED", StateType.FAILED: "FAILED"}
"""MLflow's status for the state of a flow run; KILLED for every other."""


def end_in_mlflow(flow: Flow[..., object], flow_run: FlowRun, state: State[object]) -> None:
    """End the MLflow run of a flow run, if it has one; while MLflow is away it stays open.

    Prefect passes these by keyword.
    """
    del flow
    end_run_in_mlflow(str(flow_run.id), state.type)


def end_run_in_mlflow(run_id: str, state_type: StateType) -> None:
    """End the MLflow run of the flow run `run_id`, which has ended in a state of this type."""
    connections = connect()
    plan = connections.store.root / "plans" / f"{run_id}.json"
    try:
        config = read_object(plan, remedy="delete it")["config"]
        status = STATUS.get(state_type, "KILLED")
        connections.registry.flow_runs.end(config["name"], run_id, status)
    except FileNotFoundError:  # it ended before it had one
        return
    except (TransientError, IntegrityError) as error:
        log.warning("the run in MLflow was not ended: %s", error)
