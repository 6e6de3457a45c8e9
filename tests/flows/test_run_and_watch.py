"""`ratchet run` and `ratchet watch` with a real Prefect server."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace
from uuid import UUID

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.objects import FlowRun
from prefect.states import Completed, Crashed, Failed, Pending, Running
from typer.testing import CliRunner, Result

from flows.cli import watch_run
from flows.cli.automations import AUTO_RESUME_TAG
from flows.cli.main import app
from flows.cli.run_display import PlainLines
from flows.cli.run_view import RunView
from flows.cli.terminal import Terminal
from flows.cli.why_waiting import why_waiting
from flows.full_rlhf import full_rlhf
from flows.local_services.state import load_records
from tasks.registry_tasks import register
from tasks.stage_task import stage_task
from tests.flows.made_runs import (
    deploy_flow,
    finish_step,
    make_attempt,
    make_run,
    make_step,
    write_summary,
)

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]


def started(client: SyncPrefectClient, result: Result) -> FlowRun:
    found = re.search(r"id       (\S{36})", result.stdout)
    assert found, result.output
    return client.read_flow_run(UUID(found[1]))


# ---------------------------------------------------------------------------- ratchet run


def test_a_run_that_nobody_begins_says_what_is_missing(client):
    pool = client.create_work_pool(WorkPoolCreate(name="alone", type="process")).name
    deployment = deploy_flow(client, "waiting", pool)
    run = client.create_flow_run_from_deployment(deployment)
    view = RunView(run, (), why_waiting(client, run))
    assert view.waits_for.startswith("No worker polls the work pool 'alone'; start one with")
    shown = io.StringIO()
    PlainLines(Terminal(file=shown)).show(view)
    assert shown.getvalue() == f"{run.name}: Scheduled. {view.waits_for}\n"

    client.update_work_pool(pool, WorkPoolUpdate(is_paused=True))
    assert "`prefect work-pool resume alone`" in why_waiting(client, run)
    client.update_work_pool(pool, WorkPoolUpdate(is_paused=False))
    client.send_worker_heartbeat(pool, "somebody", heartbeat_interval_seconds=30)
    assert why_waiting(client, run) == ""
    client.delete_work_pool(pool)
    assert "ratchet deploy" in why_waiting(client, client.read_flow_run(run.id))


def test_a_run_uses_the_deployment_of_its_preset(client, ratchet):
    deployment = deploy_flow(client, "tiny")
    result = ratchet("run", "tiny", "ppo.kl_coef=0.1", "--force", "ppo", "--detach")
    assert result.exit_code == 0, result.output
    run = started(client, result)
    assert run.deployment_id == deployment
    assert run.parameters == {
        "preset": "tiny",
        "overrides": {"ppo": {"kl_coef": 0.1}},
        "force": ["ppo"],
    }
    assert run.name == "tiny · ppo.kl_coef=0.1 · force ppo"
    assert f"/runs/flow-run/{run.id}" in result.stdout


def test_a_preset_without_a_deployment_uses_another_one_of_the_flow(
    client, ratchet, tmp_path, monkeypatch
):
    deploy_flow(client, "llama3-8b")
    deployment = deploy_flow(client, "tiny")
    (tmp_path / "mine.yaml").write_text("base: tiny\n")
    monkeypatch.chdir(tmp_path)
    run = started(client, ratchet("run", "mine.yaml", "--detach"))
    assert run.deployment_id == deployment
    assert run.parameters["preset"] == str(tmp_path / "mine.yaml")
    assert run.name == "mine"


def test_without_a_deployment_the_error_says_how_to_make_one(client, ratchet):
    for deployment in client.read_deployments():  # of other tests
        client.delete_deployment(deployment.id)
    result = ratchet("run", "tiny", "--flow", "raft")
    assert result.exit_code == 1
    assert "the flow raft has no deployment yet; run `ratchet deploy`" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tinny"], "did you mean 'tiny'"),
        (["tiny", "ppo.kl_coeff=1"], "kl_coeff"),
        (["tiny", "--force", "dpo_7"], "unknown step 'dpo_7'"),
        (["tiny", "--flow", "nothing"], "expected a flow of full-rlhf"),
        (["tiny", "inputs.sft.policy=nobody"], "nobody"),
    ],
)
def test_a_mistake_is_told_before_a_server_is_asked(tmp_path, monkeypatch, arguments, message):
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path))  # nothing runs there
    result = CliRunner().invoke(app, ["run", *arguments])
    assert result.exit_code == 1
    assert message in result.stderr


@pytest.mark.parametrize("command", [["run", "tiny"], ["watch"], ["runs"], ["cancel", "x"]])
def test_without_services_the_error_says_how_to_start_them(tmp_path, monkeypatch, command):
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert "run `ratchet up`" in result.stderr


# ---------------------------------------------------------------------------- ratchet watch


def test_a_completed_run_is_told_with_its_verdict_and_exit_code_0(
    client, ratchet, home_store, run_name
):
    run = make_run(client, run_name)
    finish_step(client, home_store, run.id, "sft")
    make_step(client, run.id, "ppo", Completed(name="Reused"))
    client.set_flow_run_state(run.id, Completed(), force=True)
    report = write_summary(home_store, run.id).with_name("report.html")
    result = ratchet("watch", run_name)
    assert result.exit_code == 0, result.output
    assert re.search(r"^sft: Completed after \d+ s, version 3, loss 2 → 1$", result.stdout, re.M)
    assert "ppo: Reused" in result.stdout
    assert f"{run_name}: Completed" in result.stdout
    assert "champion         no, it is not proven better than the champion" in result.stdout
    assert f"report           {report}" in result.stdout
    assert f"/runs/flow-run/{run.id}" in result.stdout
    assert "\x1b" not in result.output


def test_a_failed_run_is_told_with_step_reason_and_log_and_exit_code_1(
    client, ratchet, home_store, run_name
):
    run = make_run(client, run_name)
    finish_step(client, home_store, run.id, "sft")
    make_step(client, run.id, "dpo_1", Failed(message="row 7 has no chosen"))
    log = make_attempt(home_store, run.id, "dpo_1").log
    client.set_flow_run_state(run.id, Failed(message="Flow run encountered it"), force=True)
    result = ratchet("watch", run_name)
    assert result.exit_code == 1
    assert "failed step      dpo_1\nreason           row 7 has no chosen\n" in result.stdout
    assert f"log              {log}\n" in result.stdout
    assert f"ratchet retry {str(run.id)[:8]}" in result.stdout


def test_a_task_that_is_no_step_or_has_no_name_yet_is_not_shown(client, ratchet, run_name):
    run = make_run(client, run_name)
    make_step(client, run.id, "sft")
    # Until it runs, a task has a name that Prefect made.
    client.create_task_run(stage_task, run.id, "a", name="stage-d42", state=Pending())
    client.create_task_run(register, run.id, "b", name="register-d42", state=Running())
    client.set_flow_run_state(run.id, Failed(), force=True)
    result = ratchet("watch", run_name)
    assert "sft: Running" in result.stdout
    assert "d42" not in result.stdout


def test_a_crashed_run_that_is_resumed_by_itself_says_so(client, ratchet, run_name):
    run = client.create_flow_run(full_rlhf, parameters={}, name=run_name, tags=[AUTO_RESUME_TAG])
    client.set_flow_run_state(run.id, Crashed(message="its process is gone"), force=True)
    result = ratchet("watch", run_name)
    assert result.exit_code == 1
    assert "go on            it does so by itself in ten seconds" in result.stdout


def test_the_end_of_a_run_shows_addresses_without_a_login(
    client, ratchet, prefect_home, run_name, monkeypatch
):
    make_run(client, run_name, Failed(message="no answer from http://ann:s3cret@mlflow:5000"))
    server = load_records(prefect_home).services["prefect"].url
    monkeypatch.setenv("PREFECT_API_URL", server.replace("://", "://ann:s3cret@"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ann:s3cret@mlflow:5000")
    result = ratchet("watch", run_name)
    page = server.removesuffix("/api")
    assert result.stdout.count(f"{page}/runs/flow-run/") == 2
    assert (
        "MLflow           http://mlflow:5000/#/models?workflowType=machine_learning"
        in result.stdout
    )
    assert "reason           no answer from http://mlflow:5000" in result.stdout
    assert "s3cret" not in result.output


def test_a_run_that_failed_before_its_first_step_tells_its_own_reason(client, ratchet, run_name):
    make_run(client, run_name, Failed(message="preset 'tiny' cannot run here"))
    result = ratchet("watch", run_name)
    assert result.exit_code == 1
    assert "reason           preset 'tiny' cannot run here" in result.stdout


def test_each_change_of_a_state_is_one_line(client, ratchet, home_store, run_name, monkeypatch):
    run = make_run(client, run_name)
    task = make_step(client, run.id, "sft")
    make_attempt(home_store, run.id, "sft")

    def finish() -> None:
        client.set_task_run_state(task, Completed(), force=True)

    def register() -> None:
        make_attempt(home_store, run.id, "sft", version=3, result="loss 2 → 1")

    def end() -> None:
        client.set_flow_run_state(run.id, Completed(), force=True)

    changes = iter([lambda: None, finish, register, lambda: None, end])
    monkeypatch.setattr(watch_run, "time", SimpleNamespace(sleep=lambda _: next(changes)()))
    result = ratchet("watch", run_name)
    lines = [line for line in result.stdout.splitlines() if re.match(rf"(sft|{run_name}): ", line)]
    assert [re.sub(r"after \S+ s", "after", line) for line in lines] == [
        f"{run_name}: Running",
        "sft: Running",
        "sft: Completed after, version 3, loss 2 → 1",
        f"{run_name}: Completed",
    ]


def test_ctrl_c_without_a_terminal_leaves_the_run_going(client, ratchet, run_name, monkeypatch):
    run = make_run(client, run_name)

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watch_run, "time", SimpleNamespace(sleep=interrupt))
    result = ratchet("watch", run_name)
    assert result.exit_code == 130
    assert f"it goes on; look again with `ratchet watch {str(run.id)[:8]}`" in result.stdout
    assert client.read_flow_run(run.id).state_name == "Running"
