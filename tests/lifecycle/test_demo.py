"""What `make demo` leaves behind: better models, in a registry that says where they come from."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from uuid import UUID

import httpx
import mlflow
import pytest
import torch
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from flows.local_services.state import load_records
from tasks.ledger import history
from tasks.registry import Registry
from tests.lifecycle.driver import Lifecycle

pytestmark = pytest.mark.lifecycle

STEPS = [
    "sft",
    "reward_model",
    "rejection_sampling",
    "rejection_sft",
    "preference_pairs_1",
    "dpo_1",
    "ppo",
    "evaluation",
]
POLICIES = ["sft", "rejection_sft", "dpo_1", "ppo"]


def registry_of(lifecycle: Lifecycle) -> MlflowClient:
    return MlflowClient(lifecycle.environment["MLFLOW_TRACKING_URI"])


def version_of(lifecycle: Lifecycle, run_id: UUID, step: str) -> ModelVersion:
    """The version that a step of the run made; later runs move the step's alias on."""
    name = "tiny.reward-model" if step == "reward_model" else "tiny.policy"
    number = lifecycle.row(run_id, step)["version"]
    return registry_of(lifecycle).get_model_version(name, str(number))


def directory_of(version: ModelVersion) -> str:
    return mlflow.artifacts.download_artifacts(f"models:/{version.name}/{version.version}")


def judged(lifecycle: Lifecycle, run_id: UUID) -> dict[str, dict[str, float]]:
    directory = lifecycle.store.artifact_dir(lifecycle.manifest_of(run_id, "evaluation"))
    return json.loads((directory / "summary.json").read_text())


def test_the_demo_prints_every_step_and_the_addresses(lifecycle: Lifecycle) -> None:
    for step in STEPS:
        assert step in lifecycle.demo.output
    assert "champion         yes" in lifecycle.demo.output
    assert httpx.get(lifecycle.environment["MLFLOW_TRACKING_URI"]).status_code == 200
    prefect_page = lifecycle.environment["PREFECT_API_URL"].removesuffix("/api")
    assert prefect_page in lifecycle.demo.output


def test_every_stage_was_forked_from_a_server_that_did_the_imports(
    lifecycle: Lifecycle, demo_run: UUID
) -> None:
    ray = load_records(Path(lifecycle.environment["RATCHET_HOME"])).services["ray"]
    folder = ray.scratch or Path(lifecycle.environment["RATCHET_HOME"], "ray")
    logs = "".join(path.read_text() for path in folder.glob("fork-servers/*.log"))
    for step in STEPS:
        assert lifecycle.manifest_of(demo_run, step).key in logs


def test_ppo_beats_sft_by_more_than_three_standard_errors(
    lifecycle: Lifecycle, demo_run: UUID
) -> None:
    numbers = judged(lifecycle, demo_run)
    sft, ppo = numbers["baseline"], numbers["policy"]
    error = math.hypot(sft["reward_stderr"], ppo["reward_stderr"])
    assert ppo["mean_reward"] - sft["mean_reward"] > 3 * error


def test_every_stage_raises_the_true_reward_of_held_out_prompts(
    lifecycle: Lifecycle, demo_run: UUID
) -> None:
    numbers = judged(lifecycle, demo_run)
    means = [
        numbers[name]["mean_reward"] for name in ("baseline", "rejection_sft", "dpo_1", "policy")
    ]
    assert means == sorted(means)
    assert means[0] > 0.4  # demonstrations of mixed quality score 0.6; noise would score 0.1


def test_the_reward_model_ranks_held_out_pairs(lifecycle: Lifecycle, demo_run: UUID) -> None:
    metrics = lifecycle.manifest_of(demo_run, "reward_model").metrics
    assert metrics["heldout_pairs"] == 512
    assert metrics["heldout_accuracy"] > 0.75  # guessing gives 0.5


def test_rollouts_came_from_vllm_and_its_weights_were_the_trainers(
    lifecycle: Lifecycle, demo_run: UUID
) -> None:
    assert lifecycle.says(demo_run, "rollouts come from vLLM")
    assert lifecycle.manifest_of(demo_run, "ppo").metrics["logprob_gap"] < 1e-4


@pytest.mark.parametrize("step", POLICIES)
def test_a_policy_loads_from_the_registry_and_answers(
    lifecycle: Lifecycle, demo_run: UUID, step: str
) -> None:
    directory = directory_of(version_of(lifecycle, demo_run, step))
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory)
    order = [{"role": "user", "content": "hello i would like two tea and one cake please"}]
    ids = tokenizer.apply_chat_template(
        order, add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    output = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False
    )
    assert "here are" in tokenizer.decode(output[0, ids.shape[1] :])
    assert output[0, -1] == tokenizer.eos_token_id


def test_the_reward_model_loads_as_a_sequence_classifier(
    lifecycle: Lifecycle, demo_run: UUID
) -> None:
    directory = directory_of(version_of(lifecycle, demo_run, "reward_model"))
    model = AutoModelForSequenceClassification.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)

    def score(answer: str) -> float:
        messages = [
            {"role": "user", "content": "please bring us two soup and one salad please"},
            {"role": "assistant", "content": answer},
        ]
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        with torch.no_grad():
            return float(model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, 0])

    assert model.config.num_labels == 1
    assert score("here are two soup and one salad . enjoy !") > score(
        "hmm one moment , here are one tea ."
    )


def test_weights_are_written_once_and_load_in_place(lifecycle: Lifecycle, demo_run: UUID) -> None:
    manifest = lifecycle.manifest_of(demo_run, "ppo")
    stored = lifecycle.store.artifact_dir(manifest) / "model.safetensors"
    directory = Path(directory_of(version_of(lifecycle, demo_run, "ppo")))
    assert (directory / "model.safetensors").stat().st_ino == stored.stat().st_ino


def test_a_version_says_where_it_comes_from(lifecycle: Lifecycle, demo_run: UUID) -> None:
    client = registry_of(lifecycle)
    version = version_of(lifecycle, demo_run, "ppo")
    manifest = lifecycle.manifest_of(demo_run, "ppo")
    dpo, reward_model = (
        lifecycle.manifest_of(demo_run, step) for step in ("dpo_1", "reward_model")
    )
    assert version.tags["stage_key"] == manifest.key[:12]
    assert version.tags["digest"] == manifest.digest[:12]
    parents = {"policy": dpo.key, "reference": dpo.key, "reward_model": reward_model.key}
    assert manifest.parents == parents
    policy, judge = (lifecycle.row(demo_run, s)["version"] for s in ("dpo_1", "reward_model"))
    note = str(version.description)
    assert f"Policy `tiny.policy/{policy}`, reference `tiny.policy/{policy}`" in note
    assert f"reward model `tiny.reward-model/{judge}`" in note
    assert "**Decision.** " in note
    run = client.get_run(str(version.run_id))
    assert run.info.status == "FINISHED"
    above = client.get_run(run.data.tags["mlflow.parentRunId"])
    assert above.data.tags["flow_run_id"] == str(demo_run)
    assert above.info.status == "FINISHED"


def test_curves_are_whole_and_have_no_point_twice(lifecycle: Lifecycle, demo_run: UUID) -> None:
    client = registry_of(lifecycle)
    version = version_of(lifecycle, demo_run, "ppo")
    for name in ("ppo/reward", "ppo/kl", "ppo/response_tokens"):
        history = client.get_metric_history(str(version.run_id), name)
        assert [point.step for point in history] == list(range(1, 61))


def test_the_champion_is_what_the_ledger_says(lifecycle: Lifecycle, demo_run: UUID) -> None:
    registry = Registry(lifecycle.environment["MLFLOW_TRACKING_URI"], lifecycle.store)
    first = history(registry, "tiny.policy")[0]
    assert first.target == lifecycle.row(demo_run, "ppo")["version"]
    checks = {check["name"]: check for check in first.evidence["reasons"]}
    assert checks["win_rate_low"]["found"] > 0.5
    alias = registry_of(lifecycle).get_model_version_by_alias("tiny.policy", "champion")
    assert int(alias.version) == history(registry, "tiny.policy")[-1].target


def test_the_report_is_one_file_and_an_mlflow_artifact(
    lifecycle: Lifecycle, demo_run: UUID
) -> None:
    summary = lifecycle.summary(demo_run)
    page = Path(summary["report_file"]).read_text()
    assert "<svg" in page
    assert 'src="http' not in page
    for step in STEPS:
        assert step in page
    found = re.search(r"/runs/([0-9a-f]{32})", summary["report"])
    assert found
    artifacts = registry_of(lifecycle).list_artifacts(found.group(1))
    assert "report.html" in [artifact.path for artifact in artifacts]
