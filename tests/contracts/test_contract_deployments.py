"""Every entry of deployments/prefect.yaml can run; Prefect itself would see it at the run only.

Prefect ignores a key that it does not know, and stores a preset's name without looking at it.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from prefect import Flow
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ParameterTypeError, SignatureMismatchError
from prefect.workers.process import ProcessWorker
from pydantic import ValidationError

from flows.cli.automations import AUTO_RESUME_TAG
from flows.cli.deploy import QUEUE
from flows.cli.recipes import RECIPES
from flows.config.presets import ROOT, load_config
from flows.local_services.health import POOL
from flows.recipe.outline import block_names, require_steps
from training_core.errors import ConfigError

ENTRIES: list[dict[str, Any]] = yaml.safe_load((ROOT / "deployments" / "prefect.yaml").read_text())[
    "deployments"
]
KEYS = {
    "name",
    "description",
    "entrypoint",
    "enforce_parameter_schema",
    "parameters",
    "tags",
    "work_pool",
    "schedules",
}
WITHOUT_PRESET = {"answer"}
"""Flows whose runs get all parameters when they are created."""

JOB_VARIABLES = set(ProcessWorker.get_default_base_job_template()["variables"]["properties"])


def flow_of(entry: dict[str, Any]) -> Flow[..., Any]:
    """The flow that a worker would import."""
    file, _, function = entry["entrypoint"].partition(":")
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    flow = getattr(module, function)
    assert isinstance(flow, Flow), f"{entry['entrypoint']} is a {type(flow).__name__}, not a flow"
    return flow


def problems_of(entry: dict[str, Any]) -> Iterator[str]:
    """What would go wrong with a deployment: nothing, for one that can run."""
    yield from (f"{key}: unknown key" for key in sorted(entry.keys() - KEYS))
    if entry.get("enforce_parameter_schema") is not False:
        yield "enforce_parameter_schema: expected false, since the flow tells more about an error"
    yield from problems_of_pool(entry["work_pool"])
    yield from problems_of_schedules(entry.get("schedules", []))
    try:
        flow = flow_of(entry)
        if flow.name in WITHOUT_PRESET:
            return
        parameters = flow.validate_parameters(entry["parameters"])
        config = load_config(parameters["preset"])
        require_steps([parameters["step"]] if "step" in parameters else [], block_names())
    except (ImportError, AttributeError, AssertionError) as error:
        yield f"entrypoint: {error}"
    except (SignatureMismatchError, ParameterTypeError, ConfigError) as error:
        yield f"parameters: {error}"
    else:
        stages = [getattr(config, name) for name in block_names()]
        needs_gpus = any(stage and stage.resources.num_gpus for stage in stages)
        hardware = {"gpu" if needs_gpus else "cpu"} if flow.name in RECIPES else set()
        tags = set(entry.get("tags", [])) - {AUTO_RESUME_TAG}
        if tags != hardware:
            yield f"tags: expected {sorted(hardware)} and perhaps {AUTO_RESUME_TAG}, found {tags}"


def problems_of_pool(pool: dict[str, Any]) -> Iterator[str]:
    if pool["name"] != POOL:
        yield f"work_pool: `ratchet deploy` makes {POOL}, found {pool['name']}"
    if pool.get("work_queue_name", QUEUE) != QUEUE:
        yield f"work_queue_name: `ratchet deploy` makes {QUEUE}, found {pool['work_queue_name']}"
    unknown = pool["job_variables"].keys() - JOB_VARIABLES
    yield from (f"job_variables: a process worker has no {name}" for name in sorted(unknown))


def problems_of_schedules(schedules: list[dict[str, Any]]) -> Iterator[str]:
    for schedule in schedules:
        if not isinstance(schedule["active"], bool) or not schedule["slug"]:
            yield f"schedules: active must be true or false, and slug a name: {schedule}"
        try:
            CronSchedule(cron=schedule["cron"], timezone=schedule["timezone"])
        except ValidationError as error:
            yield f"schedules: {error}"


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: f"{e['entrypoint']}/{e['name']}")
def test_every_deployment_can_run(entry):
    assert list(problems_of(entry)) == []


def test_no_deployment_has_the_name_of_another_and_every_recipe_has_one():
    names = [f"{flow_of(entry).name}/{entry['name']}" for entry in ENTRIES]
    assert len(set(names)) == len(names)
    assert {name.split("/")[0] for name in names} == {*RECIPES, "stage", "promote", *WITHOUT_PRESET}
    assert "full-rlhf/tiny" in names  # what `ratchet demo` runs


def test_rounds_that_start_from_the_champion_run_one_at_a_time():
    queues = {flow_of(e).name: e["work_pool"].get("work_queue_name") for e in ENTRIES}
    assert queues["iterative-dpo"] == queues["raft"] == QUEUE


def with_pool(**changes: object) -> Callable[[dict[str, Any]], None]:
    return lambda entry: entry["work_pool"].update(changes)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda e: e["parameters"].update(preset="llama3-8bb"), "parameters: there is no preset"),
        (lambda e: e["parameters"].update(presett="tiny"), "parameters: Function expects param"),
        (lambda e: e["parameters"].update(force=7), "parameters: Flow run received invalid"),
        (lambda e: e.update(entrypoint="flows/iterativ.py:iterative_dpo"), "entrypoint: No module"),
        (lambda e: e.update(entrypoint="flows/iterative_dpo.py:dpo"), "entrypoint: module 'flows."),
        (lambda e: e.update(entrypoint="flows/raft.py:steps"), "is a function, not a flow"),
        (lambda e: e["tags"].append("auto-resum"), "tags: expected ['gpu']"),
        (lambda e: e["tags"].remove("gpu"), "tags: expected ['gpu']"),
        (lambda e: e["schedules"][0].update(cron="0 25 * * 6"), "schedules: "),
        (lambda e: e["schedules"][0].update(timezone="Mars"), "schedules: "),
        (lambda e: e["schedules"][0].update(active="maybe"), "schedules: active"),
        (lambda e: e.update(schedule={}), "schedule: unknown key"),
        (lambda e: e.pop("enforce_parameter_schema"), "enforce_parameter_schema: expected false"),
        (with_pool(name="rachet"), "work_pool: `ratchet deploy` makes ratchet"),
        (with_pool(work_queue_name="iterativ"), "work_queue_name: `ratchet deploy` makes"),
        (with_pool(job_variables={"workdir": "."}), "job_variables: a process worker has no"),
    ],
)  # fmt: skip
def test_a_deployment_that_cannot_run_would_be_seen(spoil, problem):
    (weekly,) = (entry for entry in ENTRIES if "schedules" in entry)
    entry = copy.deepcopy(weekly)
    spoil(entry)
    (found,) = problems_of(entry)
    assert problem in found


def test_a_step_that_no_preset_has_would_be_seen():
    (single,) = (e for e in ENTRIES if e["entrypoint"] == "flows/single_stage.py:stage")
    spoiled = {**single, "parameters": {"preset": "tiny", "step": "stf"}}
    assert list(problems_of(spoiled)) == [
        f"parameters: unknown step 'stf'; did you mean 'sft'? there are: {', '.join(block_names())}"
    ]
