"""The flows beside `full-rlhf`."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from mlflow import MlflowClient

from flows.config.presets import load_config
from flows.recipe.round_id import with_round
from stages.runtime.ray_cluster import JobStatus, RayCluster
from tasks.ledger import history
from tasks.registry import Registry
from tests.lifecycle.driver import FEW_JUDGED, QUICK_ROLLOUTS, Lifecycle

pytestmark = pytest.mark.lifecycle


def test_a_schedule_starts_iterative_dpo_which_goes_from_round_to_round_and_never_overlaps(
    lifecycle: Lifecycle,
) -> None:
    overrides = {
        "preference_pairs": {"prompts": {"size": 128}, **QUICK_ROLLOUTS},
        "iterative_dpo": {"rounds": 2, "reference": "previous"},
        **FEW_JUDGED,
    }
    deployment = "iterative-dpo/tiny"
    with lifecycle.on_schedule(deployment, overrides=overrides) as scheduled:
        assert scheduled.auto_scheduled
        due = scheduled.expected_start_time
        assert due is not None
        lifecycle.until(lambda: lifecycle.client.read_flow_run(scheduled.id).start_time)
    date = due.date().isoformat()
    by_hand = lifecycle.start(deployment, overrides=overrides, round_id=date)
    earlier, later = (lifecycle.wait(run_id) for run_id in (scheduled.id, by_hand))
    assert earlier.state_name == later.state_name == "Completed"
    assert earlier.end_time is not None
    assert later.start_time is not None
    assert earlier.end_time <= later.start_time
    plain = load_config("tiny")
    seed = lifecycle.config_of(earlier.id)["preference_pairs"]["seed"]
    assert seed == with_round(plain, date).preference_pairs.seed != plain.preference_pairs.seed

    assert lifecycle.steps(earlier.id)["sft"] == "Reused"
    round_1, round_2 = (lifecycle.manifest_of(earlier.id, f"dpo_{n}") for n in (1, 2))
    assert round_2.parents["policy"] == round_2.parents["reference"] == round_1.key
    assert round_1.digest != round_2.digest
    assert set(lifecycle.steps(later.id).values()) == {"Reused"}


def test_raft_samples_selects_and_imitates_round_after_round(lifecycle: Lifecycle) -> None:
    """The first round is what `full-rlhf` did between its SFT and its DPO."""
    overrides = {"raft": {"rounds": 2}, **FEW_JUDGED}
    run = lifecycle.run("raft/tiny", overrides=overrides)
    assert run.state_name == "Completed"
    steps = lifecycle.steps(run.id)
    assert steps["rejection_sampling_1"] == steps["rejection_sft_1"] == "Reused"
    assert steps["rejection_sampling_2"] == steps["rejection_sft_2"] == "Completed"
    first, second = (lifecycle.manifest_of(run.id, f"rejection_sft_{n}") for n in (1, 2))
    assert second.parents["policy"] == first.key
    selected = lifecycle.manifest_of(run.id, "rejection_sampling_2")
    assert selected.metrics["best_reward"] > selected.metrics["mean_reward"]


def test_one_stage_alone_takes_its_inputs_from_the_registry(lifecycle: Lifecycle) -> None:
    inputs = {
        "policy": "models:/tiny.policy@sft",
        "reward_model": "models:/tiny.reward-model@reward_model",
    }
    sampling = {"prompts": {"size": 24}, **QUICK_ROLLOUTS}  # no other test asks for as many
    run = lifecycle.run(
        "stage/default",
        step="rejection_sampling",
        inputs=inputs,
        overrides={"rejection_sampling": sampling},
    )
    assert run.state_name == "Completed"
    of_stage = [m for m in lifecycle.store.manifests() if m.stage == "rejection_sampling"]
    (made,) = (m for m in of_stage if m.metrics["prompts"] == 24)
    assert made.metrics["best_reward"] > made.metrics["mean_reward"]


def test_ray_places_the_workers_of_a_stage_and_stops_them_at_its_budget_and_when_it_is_cancelled(
    lifecycle: Lifecycle,
) -> None:
    resources = {"num_cpus": 1, "num_workers": 2}

    def start(seed: int, epochs: int, **budget: float) -> UUID:
        stage = {
            "seed": seed,
            "data": {"size": 800},
            "resources": resources,
            "training": {"epochs": epochs},
        }
        return lifecycle.start(
            "stage/default",
            step="reward_model",
            inputs={"policy": "models:/tiny.policy@sft"},
            overrides={"reward_model": stage, "budget": budget},
        )

    done = lifecycle.wait(start(seed=5, epochs=1))
    assert done.state_name == "Completed"
    attempt = lifecycle.attempt(done.id, "reward_model")
    assert "rank 1 of 2" in (attempt.directory / "log-rank1.txt").read_text()
    made = lifecycle.store.find("reward_model", attempt.key)
    assert made is not None
    assert made.metrics["heldout_accuracy"] > 0.6

    stopped = lifecycle.wait(start(seed=6, epochs=100, hours=30 / 3600))
    assert stopped.state_name == "Failed"
    assert lifecycle.says(stopped.id, "(budget.hours), found")
    attempt = lifecycle.attempt(stopped.id, "reward_model")
    assert any(attempt.directory.glob("checkpoints/step-*/COMPLETE"))

    run_id = start(seed=6, epochs=100)
    attempt = lifecycle.attempt(run_id, "reward_model", "a2")
    lifecycle.until(attempt.log.exists)
    lifecycle.until(lambda: "resumed at step" in attempt.log.read_text())
    lifecycle.until(attempt.progress.exists)
    lifecycle.cancel(run_id)
    assert lifecycle.wait(run_id).state_name == "Cancelled"
    cluster = RayCluster(lifecycle.environment["RAY_ADDRESS"])
    lifecycle.until(lambda: not cluster.info(attempt.job_id).status.is_live)
    assert cluster.info(attempt.job_id).status in (JobStatus.STOPPED, JobStatus.FAILED)
    assert lifecycle.store.find("reward_model", attempt.key) is None
    assert json.loads(attempt.error.read_text())["kind"] == "StoppedError"
    assert any(attempt.directory.glob("checkpoints/step-*/COMPLETE"))


def test_a_worse_policy_is_not_promoted_and_the_champion_stays(lifecycle: Lifecycle) -> None:
    client = MlflowClient(lifecycle.environment["MLFLOW_TRACKING_URI"])
    champion = client.get_model_version_by_alias("tiny.policy", "champion").version
    run = lifecycle.run("promote/default", version="sft", overrides=FEW_JUDGED)
    assert run.state_name == "Completed"
    assert client.get_model_version_by_alias("tiny.policy", "champion").version == champion
    assert lifecycle.says(run.id, "stays a candidate (reject)")


def test_a_rollback_needs_a_former_champion_and_is_an_entry_of_the_ledger(
    lifecycle: Lifecycle,
) -> None:
    registry = Registry(lifecycle.environment["MLFLOW_TRACKING_URI"], lifecycle.store)
    champion = history(registry, "tiny.policy")[-1].target
    parameters = {"action": "rollback", "decided_by": "ada", "reason": "a drill"}
    refused = lifecycle.run("promote/default", version="sft", **parameters)
    assert refused.state_name == "Failed"
    done = lifecycle.run("promote/default", version=str(champion), **parameters)
    assert done.state_name == "Completed"
    entry = history(registry, "tiny.policy")[-1]
    assert (entry.target, entry.verdict, entry.decided_by) == (champion, "rollback", "ada")


def test_a_misspelled_override_fails_before_anything_runs_and_names_the_nearest_key(
    lifecycle: Lifecycle,
) -> None:
    overrides = {"ppo": {"kl_coeff": 0.1, "steps": "many"}}
    run = lifecycle.run("full-rlhf/tiny", overrides=overrides)
    assert run.state_name == "Failed"
    assert lifecycle.steps(run.id) == {}
    assert lifecycle.says(run.id, "ppo.kl_coeff: unknown key; did you mean 'kl_coef'?")
    assert lifecycle.says(run.id, "ppo.steps: Input should be a valid integer (found 'many')")


def test_an_absent_data_folder_fails_at_once_with_the_reason(lifecycle: Lifecycle) -> None:
    run = lifecycle.run("full-rlhf/tinystories", overrides={"data_root": "no/such/folder"})
    assert run.state_name == "Failed"
    assert lifecycle.steps(run.id) == {}
    assert lifecycle.says(run.id, "sft.base.path: there is no file or directory")
    assert lifecycle.says(run.id, "set data_root (or RATCHET_SHARED)")
