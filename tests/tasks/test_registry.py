from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import mlflow
import pytest
import requests
from real_services import client_of, run_together, runs_of, tiny_llama

from stages.runtime.store import Store
from tasks.registry import FlowRun, Registry
from tasks.versions import ModelVersionRef, verify
from training_core.errors import ConfigError, IntegrityError

pytestmark = pytest.mark.services

ONE = FlowRun("one", "full-rlhf", "tiny", started_at=1900.0)
TWO = FlowRun("two", "full-rlhf", "tiny", started_at=2900.0)


# ------------------------------------------------------------------------- registration


def test_a_checkpoint_becomes_a_version_without_a_second_copy_of_its_bytes(
    registry, store, finish, lifecycle
):
    manifest = finish("sft")

    ref = registry.register(manifest, lifecycle=lifecycle)

    assert (ref.name, ref.version, ref.digest) == (f"{lifecycle}.policy", 1, manifest.digest)
    for record in manifest.files:
        stored = store.artifact_dir(manifest) / record.path
        assert (ref.path / record.path).samefile(stored)
        assert stored.stat().st_nlink == 2
        assert stored.stat().st_mode & 0o222 == 0
    verify(store, ref)


def test_mlflow_finds_the_candidate_in_place_and_transformers_loads_it(
    registry, finish, lifecycle, monkeypatch
):
    import torch
    from transformers import AutoModelForCausalLM

    ref = registry.register(finish("dpo-1", seed=5), lifecycle=lifecycle, is_candidate=True)

    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry.mlflow.tracking_uri)
    path = mlflow.artifacts.download_artifacts(f"models:/{lifecycle}.policy@candidate")
    assert Path(path) == ref.path
    loaded, made = AutoModelForCausalLM.from_pretrained(path), tiny_llama(5)
    for name, weight in made.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight), name
    assert not torch.equal(loaded.lm_head.weight, tiny_llama(6).lm_head.weight)


def test_registering_twice_makes_one_version_and_one_run(registry, finish, lifecycle):
    manifest = finish("sft", metrics={"loss": 0.5})

    first = registry.register(manifest, lifecycle=lifecycle)
    second = registry.register(manifest, lifecycle=lifecycle)

    assert second == first
    client = client_of(registry)
    assert len(client.search_model_versions(f"name = '{lifecycle}.policy'")) == 1
    experiment = client.get_experiment_by_name(lifecycle)
    assert len(client.search_runs([experiment.experiment_id])) == 1
    assert len(client.get_metric_history(first.run_id, "final/loss")) == 1


def test_a_known_result_costs_one_request_and_keeps_the_flow_run_that_made_it(
    registry, finish, lifecycle, monkeypatch
):
    policy = finish("sft")
    pairs = finish("preference_pairs", kind="dataset", files={"data.jsonl": "{}\n"})
    first = [registry.register(m, lifecycle=lifecycle, flow_run=ONE) for m in (policy, pairs)]

    asked = []
    send = requests.Session.request

    def counted(session, method, url, **options):
        asked.append(url)
        return send(session, method, url, **options)

    monkeypatch.setattr(requests.Session, "request", counted)
    again = [registry.register(m, lifecycle=lifecycle, flow_run=TWO) for m in (policy, pairs)]
    assert len(asked) == 2
    assert again == first
    runs = runs_of(registry, lifecycle)
    assert {run.data.tags["flow_run_id"] for run in runs} == {"one"}
    assert sorted(run.info.run_name for run in runs) == ["preference_pairs", "sft", "tiny"]


def test_what_was_deleted_in_mlflow_is_registered_again(registry, finish, lifecycle):
    policy = finish("sft")
    pairs = finish("preference_pairs", kind="dataset", files={"data.jsonl": "{}\n"})
    ref = registry.register(policy, lifecycle=lifecycle)
    registry.register(pairs, lifecycle=lifecycle)
    client = client_of(registry)
    client.delete_model_version(ref.name, str(ref.version))
    experiment = client.get_experiment_by_name(lifecycle).experiment_id
    for run in client.search_runs([experiment]):
        client.delete_run(run.info.run_id)

    again = registry.register(policy, lifecycle=lifecycle)
    registry.register(pairs, lifecycle=lifecycle)

    assert again.version == ref.version + 1
    assert registry.models.resolve(f"models:/{ref.name}@sft") == again
    stages = {run.data.tags["stage"] for run in client.search_runs([experiment])}
    assert stages == {"sft", "preference_pairs"}


def register_all(barrier, uri: str, root: Path, lifecycle: str) -> list[ModelVersionRef]:
    store = Store(root)
    registry = Registry(uri, store)
    refs = []
    for manifest in store.manifests():
        barrier.wait()
        refs.append(registry.register(manifest, lifecycle=lifecycle))
    return refs


def test_three_flows_that_register_the_same_stages_at_once_share_versions_and_runs(
    registry, store, finish, lifecycle
):
    for seed in range(4):
        finish("sft", seed=seed)

    one, two, three = run_together(
        register_all, [(registry.mlflow.tracking_uri, store.root, lifecycle)] * 3
    )

    assert one == two == three
    client = client_of(registry)
    assert len(client.search_model_versions(f"name = '{lifecycle}.policy'")) == 4
    assert len(client.search_runs([client.get_experiment_by_name(lifecycle).experiment_id])) == 4
    assert registry.models.aliases(f"{lifecycle}.policy") == {"sft": 4}


def test_version_and_run_say_what_was_made_from_what(registry, finish, lifecycle):
    manifest = finish(
        "dpo-1",
        config={"seed": 3, "training": {"batch_size": 8, "texts": ["a" * 7000], "nothing": None}},
        input_digests={"policy": "p" * 64, "dataset": "d" * 64},
        parents={"policy": "k" * 64},
        metrics={"reward_margin": 0.25},
        finished_at=2000.0,
        cost={"seconds": 60.0},
    )

    ref = registry.register(manifest, lifecycle=lifecycle, flow_run=ONE)

    tags = client_of(registry).get_model_version(ref.name, str(ref.version)).tags
    assert tags == {
        "stage_key": manifest.key[:12],
        "stage": "dpo",
        "step": "dpo-1",
        "digest": manifest.digest[:12],
    }
    assert (ref.stage_key, ref.digest) == (manifest.key, manifest.digest)
    run = client_of(registry).get_run(ref.run_id)
    assert (run.info.run_name, run.info.status) == ("dpo-1", "FINISHED")
    assert (run.info.start_time, run.info.end_time) == (1_940_000, 2_000_000)
    assert run.data.metrics == {"final/reward_margin": 0.25, "cost/seconds": 60.0}
    assert run.data.params["training.batch_size"] == "8"
    assert len(run.data.params["training.texts"]) == 250
    assert "training.nothing" not in run.data.params
    assert run.data.tags["flow_run_id"] == "one"


def test_a_reward_model_has_its_own_registered_model(registry, finish, lifecycle):
    ref = registry.register(finish("reward_model", kind="reward_model"), lifecycle=lifecycle)

    assert ref.name == f"{lifecycle}.reward-model"


def test_a_dataset_has_a_finished_run_and_no_version(registry, finish, lifecycle):
    manifest = finish("preference_pairs", kind="dataset", metrics={"pairs": 40})

    assert registry.register(manifest, lifecycle=lifecycle) is None

    client = client_of(registry)
    (run,) = client.search_runs([client.get_experiment_by_name(lifecycle).experiment_id])
    assert (run.info.status, run.data.tags["digest"]) == ("FINISHED", manifest.digest)
    assert run.data.metrics["final/pairs"] == 40
    assert not client.search_registered_models(f"name LIKE '{lifecycle}%'")


def test_an_alias_marks_the_newest_version_of_each_step(registry, finish, lifecycle):
    old, new, other = finish("sft", seed=1), finish("sft", seed=2), finish("dpo-1")
    for manifest in (old, new, other, old):  # the last is a stage that a flow reuses
        registry.register(manifest, lifecycle=lifecycle)

    assert registry.models.aliases(f"{lifecycle}.policy") == {"sft": 2, "dpo-1": 3}


@pytest.mark.parametrize("step", ["latest", "v2", "champion", "Previous"])
def test_a_step_cannot_be_named_like_a_reserved_alias(registry, finish, lifecycle, step):
    with pytest.raises(ConfigError, match="rename the step"):
        registry.register(finish("sft"), lifecycle=lifecycle, step=step)


def test_an_artifact_that_lost_a_file_is_not_registered(registry, store, finish, lifecycle):
    manifest = finish("sft")
    (store.artifact_dir(manifest) / "model.safetensors").unlink()

    with pytest.raises(IntegrityError, match=r"model\.safetensors: expected .* found no file"):
        registry.register(manifest, lifecycle=lifecycle)

    assert registry.models.aliases(f"{lifecycle}.policy") == {}


@pytest.fixture
def other_filesystem() -> Iterator[Path]:
    with TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_files_on_another_filesystem_are_copied(
    registry, finish, lifecycle, other_filesystem, caplog
):
    manifest = finish("sft")
    root = registry.store.root
    if other_filesystem.stat().st_dev == root.stat().st_dev:
        pytest.skip("/dev/shm and the temporary folder are one filesystem")
    (root / "mlflow").symlink_to(other_filesystem)

    ref = registry.register(manifest, lifecycle=lifecycle)

    assert "cannot be linked" in caplog.text
    weights = ref.path / "model.safetensors"
    assert weights.stat().st_nlink == 1
    verify(registry.store, ref)

    # One flipped byte in the copy: the store is whole, but what people load is not.
    weights.chmod(0o644)
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(IntegrityError, match="resync"):
        verify(registry.store, ref)


# --------------------------------------------------------------------------- references


def test_a_reference_resolves_by_alias_and_by_number(registry, finish, lifecycle):
    ref = registry.register(finish("sft", metrics={"loss": 0.5}), lifecycle=lifecycle)

    assert registry.models.resolve(f"models:/{lifecycle}.policy@sft") == ref
    assert registry.models.resolve(f"models:/{lifecycle}.policy/1") == ref


def test_a_reference_to_nothing_names_what_there_is(registry, finish, lifecycle):
    registry.register(finish("sft"), lifecycle=lifecycle)

    name = f"{lifecycle}.policy"
    for missing in (f"models:/{name}@champion", f"models:/{name}/2"):
        with pytest.raises(ConfigError, match=r"aliases \{'sft': 1\} and versions up to 1"):
            registry.models.resolve(missing)
    with pytest.raises(ConfigError, match="aliases none and no versions"):
        registry.models.resolve("models:/no-such-model/1")
    with pytest.raises(ConfigError, match="expected models:/"):
        registry.models.resolve(name)
