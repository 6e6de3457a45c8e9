"""What MLflow's pages show: datasets, and descriptions of versions, models and ledger entries."""

from __future__ import annotations

import mlflow
import pytest
from real_services import client_of

from stages.configs.canary_record import CanaryRecord
from tasks.attempts import Match
from tasks.gate import GateConfig, Verdict, judge
from tasks.ledger import Decision, promote, refuse, rollback
from tasks.versions import verify

pytestmark = pytest.mark.services

COUNTED = {"judged_prompts": 256.0, "judged_fraction": 1.0, "reward_gain": 0.1}
WON = judge({**COUNTED, "won_prompts": 200.0, "lost_prompts": 56.0}, GateConfig())
LOST = judge({**COUNTED, "won_prompts": 100.0, "lost_prompts": 156.0}, GateConfig())


def decision(based_on: int, verdict: Verdict, *, opponent: str = "none", why: str = "") -> Decision:
    match = Match(opponent=opponent, prompts="heldout", evaluation="e1")
    return Decision(based_on=based_on, evidence=verdict, match=match, who="ann", why=why)


def test_a_run_names_the_datasets_of_its_stage_and_no_models(registry, finish, lifecycle):
    hub = {"name": "hub", "repo": "owner/pairs", "revision": "c" * 40, "split": "train"}
    files = {"name": "files", "path": "/data/mine.jsonl"}
    mixed = {"name": "mixed", "parts": [{"data": hub}, {"data": files}]}
    manifest = finish(
        "dpo-1",
        config={"data": mixed, "eval_data": {"name": "cafe", "split": "heldout", "limit": None}},
        input_digests={
            "policy": "p" * 64,
            "dataset": "d" * 64,
            "data.parts.1.data.path": "f" * 64,
        },
        parents={"policy": "k" * 64, "dataset": "e" * 64},
    )

    ref = registry.register(manifest, lifecycle=lifecycle)
    registry.runs.complete(ref.run_id, manifest, "")  # as a Retry after a crash does

    run = client_of(registry).get_run(ref.run_id)
    found = {i.dataset.name: i for i in run.inputs.dataset_inputs}
    assert len(run.inputs.dataset_inputs) == len(found)
    contexts = {name: each.tags[0].value for name, each in found.items()}
    assert contexts == {
        "dataset": "training",
        "owner/pairs": "training",
        "mine.jsonl": "training",
        "cafe heldout": "evaluation",
    }
    assert found["dataset"].dataset.digest == "d" * 36
    loaded = mlflow.data.get_source(found["owner/pairs"].dataset)
    assert (loaded.path, loaded.revision) == ("owner/pairs", "c" * 40)
    assert mlflow.data.get_source(found["mine.jsonl"].dataset).uri == "/data/mine.jsonl"


def test_a_version_says_what_it_is_and_what_it_improved(registry, finish, lifecycle):
    sft = finish("sft", metrics={"heldout_loss_before": 4.0, "heldout_loss": 1.5})
    dpo = finish(
        "dpo-1",
        parents={"policy": sft.key, "reference": "c" * 64},
        metrics={"accuracy": 0.875, "train_pairs": 64.0},
    )
    registry.register(sft, lifecycle=lifecycle)

    ref = registry.register(dpo, lifecycle=lifecycle)

    client = client_of(registry)
    note = client.get_model_version(ref.name, str(ref.version)).description
    assert f"A policy, made by the step `dpo-1` of `{lifecycle}`" in note
    assert "**What it improved.** 0.875 of 64 training pairs ranked right." in note
    assert f"Policy `{lifecycle}.policy/1`, reference `cccccccccccc`." in note
    assert "| Pairs ranked right (fraction) | 0.875 |" in note
    assert client.get_run(ref.run_id).data.tags["mlflow.note.content"] in note
    (model,) = client.search_registered_models(f"name = '{ref.name}'")
    assert "The alias of a step's name marks its newest version" in model.description
    experiment = client.get_experiment_by_name(lifecycle)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    assert "One run per run of a flow" in experiment.tags["mlflow.note.content"]


def test_a_version_carries_its_canaries_and_its_contract(registry, finish, lifecycle):
    canary = CanaryRecord(name="single_bos", shows="sequences with two", found=0.0, limit=0.0)
    gap = CanaryRecord(name="first_ratio", shows="log-ratio", found=2e-7, limit=3e-4)
    contract = {"vocabulary": "66 tokens, digest abc", "chat_template": "x", "dtype": "float32"}
    manifest = finish("dpo-1", canaries=(canary, gap), contract=contract)

    ref = registry.register(manifest, lifecycle=lifecycle)

    client = client_of(registry)
    note = client.get_model_version(ref.name, str(ref.version)).description
    assert "| single bos: sequences with two | 0.00 | 0.00 |" in note
    assert "**Contract.** Vocabulary 66 tokens, digest abc; dtype float32." in note
    metrics = client.get_run(ref.run_id).data.metrics
    assert (metrics["canary/single_bos"], metrics["canary/first_ratio"]) == (0.0, 2e-7)


def test_a_version_of_an_earlier_release_with_long_tags_is_not_registered_again(
    registry, finish, lifecycle
):
    manifest = finish("sft")
    run_id = registry.runs.run_for(lifecycle, "sft", "sft", manifest.key, attempt="a1")
    client = client_of(registry)
    source = f"{client.get_run(run_id).info.artifact_uri}/checkpoint/{manifest.digest[:12]}"
    tags = {"stage": "sft", "step": "sft", "stage_key": manifest.key, "digest": manifest.digest}
    client.create_registered_model(f"{lifecycle}.policy")
    client.create_model_version(f"{lifecycle}.policy", source, run_id, tags)

    ref = registry.register(manifest, lifecycle=lifecycle)

    assert (ref.version, ref.stage_key, ref.digest) == (1, manifest.key, manifest.digest)
    assert registry.models.resolve(f"models:/{lifecycle}.policy@sft") == ref
    assert ref.path.name == manifest.digest[:12]
    verify(registry.store, ref)


def test_ledger_entries_and_versions_say_what_was_decided_last(registry, finish, lifecycle):
    name = f"{lifecycle}.policy"
    for seed in (1, 2):
        registry.register(finish("dpo-1", seed=seed), lifecycle=lifecycle)

    client = client_of(registry)
    ledger = f"{name}.promotions"
    refuse(registry, name, 1, decision(0, LOST, why="lost"))
    first = promote(registry, name, 1, decision(0, WON.model_copy(update={"attempt": 2})))
    second = promote(registry, name, 2, decision(first.number, WON, opponent="1"))
    rollback(registry, name, 1, based_on=second.number, who="bo", why="rude at night")

    entries = [client.get_model_version(ledger, str(n)).description for n in range(1, 5)]
    refused, promoted, _, rolled_back = entries
    said = "Rejected: it stays a candidate, and the evidence is against it. Decided by ann: lost."
    assert refused.startswith(f"`{name}/1`: {said}")
    assert "**Reject**: 1 of 5 checks failed, 1 of them against the candidate." in refused
    assert "| win_rate_low | > 0.5 | 0.3" in refused
    assert promoted.startswith(f"`{name}/1`: Promoted to champion. Decided by ann.")
    again = "Made champion again by a rollback. Decided by bo: rude at night."
    assert rolled_back == f"`{name}/1`: {again}"
    (model,) = client.search_registered_models(f"name = '{ledger}'")
    assert model.description.startswith(f"The promotion ledger of `{name}`")
    note = client.get_model_version(name, "1").description
    assert note.startswith("**What it is.** A policy, made by the step `dpo-1`")
    assert note.endswith(f"**Decision.** {again}")  # and none of the earlier ones
    assert note.count("**Decision.**") == 1
    tags = [client.get_model_version(name, str(n)).tags["verdict"] for n in (1, 2)]
    assert tags == ["rollback", "promote"]
