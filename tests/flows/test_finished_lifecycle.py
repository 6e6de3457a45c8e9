"""Whole flows whose stages are all done: real Prefect and MLflow, and no cluster is asked.

The stages are finished by hand, under the keys that the flow works out.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterKey,
)
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelling, Running

from flows.cli.plan import Plan, show_plan
from flows.config.presets import load_config
from flows.full_rlhf import full_rlhf
from flows.promote import promote
from flows.raft import raft
from flows.raft import steps as raft_steps
from flows.recipe.cancellation import is_going_on
from flows.recipe.lifecycle_report import LifecycleSummary, publish_report
from flows.recipe.opening import open_recipe
from flows.recipe.run import Recipe
from flows.single_stage import stage
from stages.configs.block import StageConfig
from tasks.connections import Connections, connect
from tasks.ledger import history
from tasks.refs import StageRef, ref_of
from tasks.registry import Registry
from tasks.stage_task import StageJob, request_for
from tests.tasks.real_services import finish_stage
from training_core.errors import ConfigError, DataError

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]

SCORES = {
    "baseline": {"mean_reward": 0.5, "reward_stderr": 0.02, "win_rate": 0.5},
    "policy": {"mean_reward": 0.75, "reward_stderr": 0.01, "win_rate": 0.8, "win_rate_low": 0.7},
}
FOUND = {**SCORES["policy"], "kl_to_baseline": 1.5}
SAMPLE = {"policy": "policy", "prompt_id": "1", "prompt": "tea?", "response": "tea!", "reward": 1.0}


@dataclass
class Finisher(Plan):
    """Walks a recipe and finishes each step by hand, instead of only looking whether it is."""

    made: list[str] = field(default_factory=list)

    def run(self, step: str, config: StageConfig, **inputs: StageRef | None) -> StageRef:
        given = {role: ref for role, ref in inputs.items() if ref is not None}
        job = StageJob(step, config, given, self.config.name)
        request = request_for(job, self.connections)
        files = {"summary.json": json.dumps(SCORES), "samples.jsonl": json.dumps(SAMPLE) + "\n"}
        manifest = finish_stage(
            self.connections.store,
            step,
            seed=len(self.made),
            kind=job.spec.makes,
            files=files if job.spec.makes == "evaluation" else None,
            stage=request.stage,
            key=request.key,
            config=request.config,
            parents=request.parents,
            metrics=FOUND if job.spec.makes == "evaluation" else {"rows": 3.0},
            cost={"seconds": 12.5},
        )
        self.made.append(step)
        self.refs[step] = ref_of(manifest, step, is_reused=True)
        return self.refs[step]


@dataclass
class Finished:
    """A finished `raft`: what it was started with and what it returned."""

    overrides: dict[str, object]
    connections: Connections
    run: FlowRun
    summary: LifecycleSummary

    @property
    def name(self) -> str:
        return str(self.overrides["name"])


@pytest.fixture
def finished(
    client: SyncPrefectClient, mlflow_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Finished:
    monkeypatch.setenv("RATCHET_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")  # nobody answers there
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_uri)
    overrides = {"name": f"tiny-{uuid.uuid4().hex[:8]}", "raft": {"rounds": 1}}
    connections = connect()
    raft_steps(Finisher(load_config("tiny", overrides), connections, None))
    state = raft("tiny", overrides, return_state=True)
    run = client.read_flow_run(state.state_details.flow_run_id)
    return Finished(overrides, connections, run, state.result())


def artifact_of(client: SyncPrefectClient, run: FlowRun, key: str) -> str:
    """The newest artifact of a flow run under a key."""
    of_run = ArtifactFilter(
        flow_run_id=ArtifactFilterFlowRunId(any_=[run.id]), key=ArtifactFilterKey(any_=[key])
    )
    (artifact,) = client.read_artifacts(artifact_filter=of_run)
    return str(artifact.data)


STEPS = ["sft", "reward_model", "rejection_sampling_1", "rejection_sft_1", "evaluation"]


def test_a_flow_over_finished_stages_reuses_reports_promotes_and_is_planned_as_done(
    finished: Finished, client: SyncPrefectClient, capsys: pytest.CaptureFixture[str]
) -> None:
    summary, store = finished.summary, finished.connections.store
    assert [row["step"] for row in summary["rows"]] == STEPS
    assert [row["reused"] for row in summary["rows"]] == [True] * 5
    # sft is version 1 of the policies, rejection_sft_1 is 2; data and evaluations have no version
    assert [row["version"] for row in summary["rows"]] == [1, 1, None, 2, None]
    results = [row["result"] for row in summary["rows"]]
    assert results[0] == "held-out reward 0.500 ± 0.020"
    assert results[3] == "held-out reward 0.750 ± 0.010"
    assert results[4] == "win rate 0.800 vs SFT"
    assert summary["is_champion"] is True
    (entry,) = history(finished.connections.registry, f"{finished.name}.policy")
    assert (entry.target, entry.decided_by, entry.reason) == (
        2,
        "raft",
        "raft: beats the SFT policy",
    )

    folder = store.root / "reports" / str(finished.run.id)
    assert Path(summary["report_file"]) == folder / "report.html"
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert "held-out reward" in (folder / "report.html").read_text()
    assert httpx.get(summary["report"].partition("#")[0]).status_code == 200
    table = artifact_of(client, finished.run, "lifecycle-report").splitlines()
    assert table[0] == "| step | result | version | time | |"
    assert table[2] == "| SFT | held-out reward 0.500 ± 0.020 | 1 | 12.5 s | reused |"
    assert table[-1] == f"[The whole report]({summary['report']})"
    config = artifact_of(client, finished.run, "resolved-config")
    assert f'"name": "{finished.name}"' in config

    assert show_plan("tiny", "raft", finished.overrides) is True
    shown = capsys.readouterr().out
    assert shown.count(" done ") == 6  # the steps and the promotion
    assert "to do" not in shown


def test_a_retry_goes_on_with_what_the_run_began_with(
    finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ID", str(finished.run.id))
    recipe = open_recipe("raft", "llama3-8b", None)
    assert recipe.config == load_config("tiny", finished.overrides)
    assert recipe.champion is None  # although the run has made one since


def test_a_run_whose_data_is_not_there_ends_before_any_step(finished: Finished) -> None:
    overrides = {"name": finished.name, "data_root": "no/such/folder"}
    with pytest.raises(DataError, match=r"(?s)preset 'tinystories' cannot run here:.*no/such/fol"):
        full_rlhf("tinystories", overrides)


def test_a_run_goes_on_until_it_ends_is_cancelled_or_is_forgotten(
    client: SyncPrefectClient,
) -> None:
    run = client.create_flow_run(raft.with_options(name="unfinished"))
    assert is_going_on(client, str(run.id))
    client.set_flow_run_state(run.id, Running(), force=True)
    assert is_going_on(client, str(run.id))
    client.set_flow_run_state(run.id, Cancelling(), force=True)
    assert not is_going_on(client, str(run.id))
    assert not is_going_on(client, str(uuid.uuid4()))
    assert not is_going_on(client, "no id of a flow run")


def test_the_plan_of_a_changed_config_says_what_changed_and_what_waits_for_it(
    finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_config("tiny", {**finished.overrides, "reward_model": {"seed": 5}})
    champion = finished.connections.registry.models.resolve(f"models:/{finished.name}.policy/2")
    plan = Plan(config, finished.connections, champion)
    raft_steps(plan)
    reasons = {step.step: step.reason for step in plan.steps}
    assert reasons["sft"].endswith("made by a1")
    assert reasons["reward_model"] == "changed: seed 0 → 5"
    assert reasons["rejection_sampling_1"] == "after reward_model"
    assert reasons["evaluation"] == "after rejection_sft_1, reward_model"
    assert reasons["promotion"] == f"judged against models:/{finished.name}.policy/2"
    with pytest.raises(ConfigError, match="expected a flow of full-rlhf, iterative-dpo, raft"):
        show_plan("tiny", "rafft", finished.overrides)
    assert capsys.readouterr().out == ""


def test_promotion_by_hand_finds_the_champion_and_rolls_back_only_to_a_former_one(
    finished: Finished,
) -> None:
    overrides, policies = finished.overrides, f"{finished.name}.policy"
    assert promote("tiny", "candidate", overrides=overrides) is True  # it is champion already
    assert len(history(finished.connections.registry, policies)) == 1

    with pytest.raises(ConfigError, match=r"that was champion \[2\], found 1"):
        promote("tiny", "1", "rollback", overrides=overrides)

    assert promote("tiny", "2", "rollback", "ann", "a drill", overrides) is True
    last = history(finished.connections.registry, policies)[-1]
    assert (last.target, last.verdict, last.decided_by, last.reason) == (
        2,
        "rollback",
        "ann",
        "a drill",
    )


def test_one_stage_takes_inputs_by_alias_and_by_key_and_names_what_is_wrong(
    finished: Finished,
) -> None:
    overrides = finished.overrides
    data = finished.summary["rows"][2]
    inputs = {
        "policy": f"models:/{finished.name}.policy@sft",
        "dataset": f"{data['stage']}/{data['key']}",
    }
    made = stage("rejection_sft", "tiny", inputs, overrides)
    assert (made.step, made.key, made.is_reused) == (
        "rejection_sft",
        finished.summary["rows"][3]["key"],
        True,
    )
    with pytest.raises(ConfigError, match="unknown step 'stf'; did you mean 'sft'"):
        stage("stf", "tiny", overrides=overrides)
    with pytest.raises(ConfigError, match="preset 'tiny' has no block 'kto'"):
        stage("kto", "tiny", overrides=overrides)
    with pytest.raises(ConfigError, match=r"input 'dataset': expected models:/.*found 'sft/0'"):
        stage("rejection_sft", "tiny", {"dataset": "sft/0"}, overrides)


def test_without_mlflow_the_report_is_written_and_says_where_it_is(
    finished: Finished, client: SyncPrefectClient
) -> None:
    store = finished.connections.store
    away = Connections(store, finished.connections.cluster, Registry("http://127.0.0.1:1", store))
    walked = Plan(load_config("tiny", finished.overrides), finished.connections, None)
    raft_steps(walked)

    @flow
    def report_only() -> LifecycleSummary:
        return publish_report(Recipe("raft", walked.config, away, (), None, walked.refs))

    started = time.monotonic()
    state = report_only(return_state=True)
    assert time.monotonic() - started < 120
    run = client.read_flow_run(state.state_details.flow_run_id)
    summary = state.result()
    assert summary["report"] is None
    assert Path(summary["report_file"]).exists()
    table = artifact_of(client, run, "lifecycle-report")
    assert table.endswith(f"The whole report: `{summary['report_file']}`")
