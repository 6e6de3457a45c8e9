"""Whole flows whose stages are all done: real Prefect and MLflow, and no cluster is asked.

The stages are finished by hand, under the keys that the flow works out.
"""

from __future__ import annotations

import json
import time
import uuid
from functools import partial
from pathlib import Path

import httpx
import pytest
from mlflow.entities import Run
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterKey,
)
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelling, Failed, Running

from flows.cli.plan import Plan, show_plan
from flows.config.presets import load_config
from flows.full_rlhf import full_rlhf
from flows.promote import promote
from flows.raft import raft
from flows.raft import steps as raft_steps
from flows.recipe.cancellation import is_going_on
from flows.recipe.flow_end import end_in_mlflow
from flows.recipe.lifecycle_report import LifecycleSummary, publish_report
from flows.recipe.opening import open_recipe
from flows.recipe.run import Recipe
from flows.single_stage import stage
from tasks.connections import Connections
from tasks.ledger import history
from tasks.registry import Registry
from tasks.run_steps import attempt_of_step, steps_of_run
from tests.flows.finished import Finished, Finisher, finished
from tests.tasks.real_services import client_of, runs_of
from training_core.errors import ConfigError, DataError

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]

__all__ = ["finished"]


def artifact_of(client: SyncPrefectClient, run: FlowRun, key: str) -> str:
    """The newest artifact of a flow run under a key."""
    of_run = ArtifactFilter(
        flow_run_id=ArtifactFilterFlowRunId(any_=[run.id]), key=ArtifactFilterKey(any_=[key])
    )
    (artifact,) = client.read_artifacts(artifact_filter=of_run)
    return str(artifact.data)


STEPS = ["sft", "reward_model", "rejection_sampling_1", "rejection_sft_1", "evaluation"]


def nested_run(finished: Finished) -> Run:
    """The lifecycle's run in MLflow, after a look at those below it and at the links to them."""
    runs = runs_of(finished.connections.registry, finished.name)
    (above,) = (run for run in runs if run.data.tags["kind"] == "lifecycle")
    below = [run for run in runs if run is not above]
    assert (above.info.run_name, above.info.status) == (finished.run.name, "FINISHED")
    assert {run.data.tags["mlflow.parentRunId"] for run in below} == {above.info.run_id}
    assert sorted(run.info.run_name for run in below) == sorted(STEPS)
    note = above.data.tags["mlflow.note.content"].splitlines()
    (sft,) = (run for run in below if run.info.run_name == "sft")
    assert note[4].startswith("| SFT | held-out reward 0.500 ± 0.020 | [run](http")
    assert f"/runs/{sft.info.run_id}?workflowType=machine_learning)" in note[4]
    assert f"/#/models/{finished.name}.policy/versions/1?workflowType=" in note[4]
    page = Path(finished.summary["report_file"]).read_text()
    assert f"/runs/{sft.info.run_id}?workflowType=machine_learning" in page
    assert f"/runs/flow-run/{finished.run.id}" in page
    return above


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
    assert summary["verdict"] == "it beats the first policy"
    assert summary["decision"] == "promote"
    noted = steps_of_run(store, str(finished.run.id))
    assert {step: (noted[step].key, noted[step].version) for step in STEPS} == {
        row["step"]: (row["key"], row["version"]) for row in summary["rows"]
    }
    attempt = attempt_of_step(store, noted["sft"])
    assert attempt is not None
    assert attempt.key == noted["sft"].key
    (entry,) = history(finished.connections.registry, f"{finished.name}.policy")
    assert (entry.target, entry.decided_by, entry.reason) == (
        2,
        "raft",
        "raft: beats the first policy",
    )

    folder = store.root / "reports" / str(finished.run.id)
    assert Path(summary["report_file"]) == folder / "report.html"
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert "held-out reward" in (folder / "report.html").read_text()
    assert httpx.get(summary["report"].partition("#")[0]).status_code == 200
    assert "tiny · " in (folder.parent / "index.html").read_text()
    above = nested_run(finished)
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

    end_in_mlflow(raft, finished.run, Failed())
    again = client_of(finished.connections.registry).get_run(above.info.run_id)
    assert again.info.status == "FAILED"


def test_a_retry_goes_on_with_what_the_run_began_with(
    finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ID", str(finished.run.id))
    recipe = open_recipe("raft", "llama3-8b", {})
    assert recipe.config == load_config("tiny", finished.overrides)
    assert recipe.champion is None  # although the run has made one since

    @flow
    def seed_of(run_id: str, round_id: str | None) -> int:
        monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ID", run_id)
        recipe = open_recipe("iterative-dpo", "tiny", finished.overrides, round_id=round_id)
        return recipe.config.preference_pairs.seed

    first = seed_of("scheduled", "2026-11-21")
    assert seed_of("scheduled", "2026-11-22") == first  # the same run, started again a day later
    assert seed_of("next", "2026-11-28") != first
    assert seed_of("by-hand", None) == load_config("tiny").preference_pairs.seed


def test_a_run_judged_by_the_reward_that_it_optimised_reports_and_promotes_nothing(
    finished: Finished,
) -> None:
    overrides = {
        "name": f"{finished.name}-own",
        "raft": {"rounds": 1},
        "evaluation": {"reward": {"name": "reward_model"}},
    }
    config = load_config("tiny", overrides)
    steps = Finisher(config, finished.connections, None)
    steps.skips = frozenset(STEPS[:-1])  # finished under the same keys
    raft_steps(steps)
    summary = raft("tiny", overrides=overrides)
    assert summary["is_champion"] is False
    assert summary["rows"][-1]["result"] == "win rate 0.800 vs SFT"  # shown all the same
    page = Path(summary["report_file"]).read_text()
    assert "the reward model of rejection_sampling.reward" in page
    registry = finished.connections.registry
    assert history(registry, f"{config.name}.policy") == []
    (refused,) = registry.models.entries(f"{config.name}.policy.promotions")
    assert refused.tags["verdict"] == "hold"


def test_a_run_whose_data_is_missing_or_judges_what_it_trains_on_ends_before_any_step(
    finished: Finished,
) -> None:
    overrides = {"name": finished.name, "data_root": "no/such/folder"}
    with pytest.raises(DataError, match=r"(?s)preset 'tinystories' cannot run here:.*no/such/fol"):
        full_rlhf("tinystories", overrides=overrides)

    prompts = {"name": "cafe", "split": "heldout", "size": 8, "seed": 9}
    shared = {"ppo": {"prompts": prompts}, "evaluation": {"prompts": prompts}}
    for start in (raft, partial(promote, "tiny", "candidate")):
        with pytest.raises(DataError, match=r"8 of 8 different prompts .* also in ppo\.prompts"):
            start(overrides={"name": finished.name, **shared})
    assert show_plan("tiny", "raft", {"name": finished.name, **shared}) is False


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

    assert promote("tiny", "2", "rollback", "ann", "a drill", overrides=overrides) is True
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
    made = stage("rejection_sft", "tiny", inputs=inputs, overrides=overrides)
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
        stage("rejection_sft", "tiny", inputs={"dataset": "sft/0"}, overrides=overrides)


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
