"""What `ratchet deploy` keeps in a real Prefect server."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.filters import WorkPoolFilter, WorkPoolFilterName

from flows.cli.automations import crashed_runs_resume, lost_runs_crash
from flows.cli.deploy import QUEUE, deploy
from flows.local_services.health import POOL
from flows.local_services.paths import project_root
from flows.local_services.state import ServiceError

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]

WRITTEN = yaml.safe_load((project_root() / "deployments" / "prefect.yaml").read_text())
VOLATILE = {"created", "updated", "version_id", "version_info", "status", "last_polled"}


def state_of(client: SyncPrefectClient) -> dict[str, Any]:
    """Everything that `deploy` is about, by its ids, without times."""
    of_pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL]))
    everything = {
        "pools": client.read_work_pools(),
        "queues": client.read_work_queues(work_pool_name=POOL),
        "deployments": client.read_deployments(work_pool_filter=of_pool),
    }
    state = {
        kind: [each.model_dump(mode="json") for each in found] for kind, found in everything.items()
    }
    # The client's own types leave out a trigger's id, under which the server remembers what it saw.
    ours = {lost_runs_crash().name, crashed_runs_resume().name}
    answer = client.request("POST", "/automations/filter", json={}).json()
    state["automations"] = [each for each in answer if each["name"] in ours]
    for automation in state["automations"]:
        automation["trigger"]["expect"].sort()  # a set, which the server tells in any order
    return {
        kind: without_times(sorted(found, key=itemgetter("id"))) for kind, found in state.items()
    }


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k not in VOLATILE}
    return [without_times(each) for each in value] if isinstance(value, list) else value


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Return every value that holds no others, by its path; empty ones count."""
    if not isinstance(value, (dict, list)) or not value:
        return {path: value}
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    return {
        place: leaf for key, each in inner for place, leaf in leaves(each, f"{path}/{key}").items()
    }


def differences(before: Any, after: Any) -> dict[str, tuple[Any, Any]]:
    """Return only what differs: two whole states are too long to be read in a failure."""
    left, right = leaves(before), leaves(after)
    places = sorted(left.keys() | right.keys())
    return {p: (left.get(p), right.get(p)) for p in places if left.get(p) != right.get(p)}


def test_a_second_deploy_mends_what_was_changed_by_hand_and_changes_nothing_else(
    prefect_home: Path, client: SyncPrefectClient
) -> None:
    names = deploy(prefect_home)
    assert len(set(names)) == len(names) == len(WRITTEN["deployments"])
    assert {"full-rlhf/tiny", "iterative-dpo/llama3-8b", "stage/default"} <= set(names)
    first = state_of(client)
    (pool,) = first["pools"]
    assert (pool["name"], pool["type"]) == (POOL, "process")
    limits = {queue["name"]: queue["concurrency_limit"] for queue in first["queues"]}
    assert limits == {"default": None, QUEUE: 1}
    assert [automation["enabled"] for automation in first["automations"]] == [True, True]
    check_deployments(first["deployments"])

    queue = client.read_work_queue_by_name(QUEUE, work_pool_name=POOL)
    client.update_work_queue(queue.id, concurrency_limit=5)
    (original,) = client.read_automations_by_name(lost_runs_crash().name)
    client.create_automation(lost_runs_crash())  # a double
    client.pause_automation(original.id)
    (resuming,) = client.read_automations_by_name(crashed_runs_resume().name)
    client.update_automation(resuming.id, crashed_runs_resume().model_copy(update={"actions": []}))
    tiny = client.read_deployment_by_name("full-rlhf/tiny")
    client.update_deployment(tiny.id, DeploymentUpdate(tags=["wrong"]))
    weekly = client.read_deployment_by_name("iterative-dpo/llama3-8b")
    (schedule,) = weekly.schedules
    assert schedule.active is False  # nobody's machine starts Llama 3 by itself
    client.update_deployment_schedule(weekly.id, schedule.id, active=True)
    assert len(state_of(client)["automations"]) == 3

    assert deploy(prefect_home) == names

    second = state_of(client)
    (schedule,) = client.read_deployment_by_name("iterative-dpo/llama3-8b").schedules
    assert schedule.active is True  # what a person has switched on stays on
    client.update_deployment_schedule(weekly.id, schedule.id, active=False)
    second["deployments"] = state_of(client)["deployments"]
    for automation in first["automations"]:
        if automation["id"] == str(original.id):
            automation["enabled"] = False  # what a person has paused stays paused
    for automation in first["automations"] + second["automations"]:
        if automation["id"] == str(resuming.id):
            del automation["trigger"]["id"]  # every update gives a new one
    assert differences(first, second) == {}


def check_deployments(deployments: list[dict[str, Any]]) -> None:
    """What is stored is what prefect.yaml says."""
    stored = {(each["entrypoint"], each["name"]): each for each in deployments}
    for entry in WRITTEN["deployments"]:
        deployment = stored.pop((entry["entrypoint"], entry["name"]))
        assert deployment["parameters"] == entry.get("parameters", {})
        if preset := entry.get("parameters", {}).get("preset"):
            form = deployment["parameter_openapi_schema"]["properties"]["overrides"]
            assert f"In `{preset}`: " in str(form)
        assert deployment["enforce_parameter_schema"] is False
        assert deployment["tags"] == entry.get("tags", [])
        queue = entry["work_pool"].get("work_queue_name", "default")
        assert (deployment["work_pool_name"], deployment["work_queue_name"]) == (POOL, queue)
        crons = [each["schedule"]["cron"] for each in deployment["schedules"]]
        assert crons == [each["cron"] for each in entry.get("schedules", [])]
        (step,) = deployment["pull_steps"]
        root = str(project_root())
        assert step["prefect.deployments.steps.set_working_directory"]["directory"] == root
        assert deployment["job_variables"]["env"] == {"PYTHONPATH": root}
    assert stored == {}


def test_a_refused_deployment_ends_with_the_words_of_prefect(
    client: SyncPrefectClient,
    prefect_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "yaml.py").write_text("raise ImportError('a yaml of my own')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # Prefect's command finds it first
    message = r"(?s)`prefect deploy` of deployments/prefect.yaml ended with 1; .*a yaml of my own"
    with pytest.raises(ServiceError, match=message):
        deploy(prefect_home)


def test_deploying_needs_a_server_that_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with pytest.raises(ServiceError, match=r"there is no Prefect server: none was started in"):
        deploy(tmp_path)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    with pytest.raises(ServiceError, match=r"no Prefect server answers at http://127.0.0.1:1/api"):
        deploy(tmp_path)
