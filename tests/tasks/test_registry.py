from __future__ import annotations

import json
import shutil
import socket
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import mlflow
import pytest
from real_services import run_together, tiny_llama

from stages.runtime.store import Store
from tasks.registry import ATTEMPT, MIRRORED, Registry
from tasks.versions import ModelVersionRef, verify
from training_core.errors import ConfigError, IntegrityError, TransientError

pytestmark = pytest.mark.services


def client_of(registry: Registry) -> mlflow.MlflowClient:
    """What a user of MLflow sees, past our own door."""
    return mlflow.MlflowClient(registry.mlflow.tracking_uri, registry.mlflow.tracking_uri)


def write_curve(path: Path, steps: range) -> None:
    with path.open("a") as file:
        for step in steps:
            metrics = {"sft/loss": 4.0 / (step + 1), "sft/tokens": 128}
            line = {"step": step, "time": 1000.0 + step, "metrics": metrics}
            file.write(json.dumps(line) + "\n")


def steps_of(registry: Registry, run_id: str, name: str = "sft/loss") -> list[int]:
    return [point.step for point in client_of(registry).get_metric_history(run_id, name)]


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
        config={"seed": 3, "training": {"batch_size": 8, "texts": ["a" * 7000]}},
        input_digests={"policy": "p" * 64, "dataset": "d" * 64},
        parents={"policy": "k" * 64},
        metrics={"reward_margin": 0.25},
        finished_at=2000.0,
    )

    ref = registry.register(manifest, lifecycle=lifecycle, flow_run_id="flow-7")

    tags = client_of(registry).get_model_version(ref.name, str(ref.version)).tags
    assert tags == {
        "stage_key": manifest.key,
        "stage": "dpo",
        "step": "dpo-1",
        "digest": manifest.digest,
        "parents": json.dumps({"policy": "k" * 64}),
        "input_digests": json.dumps({"dataset": "d" * 64, "policy": "p" * 64}),
        "metric.reward_margin": "0.25",
    }
    assert ref.metrics == {"reward_margin": 0.25}
    run = client_of(registry).get_run(ref.run_id)
    assert (run.info.run_name, run.info.status, run.info.end_time) == (
        "dpo-1",
        "FINISHED",
        2_000_000,
    )
    assert run.data.metrics["final/reward_margin"] == 0.25
    assert run.data.params["training.batch_size"] == "8"
    assert len(run.data.params["training.texts"]) == 6000
    assert run.data.tags["flow_run_id"] == "flow-7"
    assert [d.dataset.name for d in run.inputs.dataset_inputs] == ["dataset"]


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


# ------------------------------------------------------------------------------- curves


def test_mirroring_again_adds_only_what_is_new(registry, tmp_path, lifecycle):
    curve = tmp_path / "metrics.jsonl"
    run_id = registry.runs.run_for(lifecycle, "sft", "sft", "a" * 64, attempt="a1")
    assert registry.runs.mirror_metrics(run_id, curve) is None

    write_curve(curve, range(5))
    assert registry.runs.mirror_metrics(run_id, curve) == 3  # step 4 may get another line
    assert registry.runs.mirror_metrics(run_id, curve) == 3
    assert steps_of(registry, run_id) == [0, 1, 2, 3]

    write_curve(curve, range(5, 7))
    assert registry.runs.mirror_metrics(run_id, curve, is_complete=True) == 6
    assert registry.runs.mirror_metrics(run_id, curve, is_complete=True) == 6
    assert steps_of(registry, run_id) == [0, 1, 2, 3, 4, 5, 6]
    assert client_of(registry).get_metric_history(run_id, "sft/loss")[3].value == 1.0  # 4 / (3 + 1)


def test_two_lines_of_one_step_both_arrive(registry, tmp_path, lifecycle):
    curve = tmp_path / "metrics.jsonl"
    run_id = registry.runs.run_for(lifecycle, "sft", "sft", "a" * 64, attempt="a1")
    write_curve(curve, range(3))
    registry.runs.mirror_metrics(run_id, curve)
    with curve.open("a") as file:
        line = {"step": 2, "time": 1002.5, "metrics": {"sft/heldout_loss": 1.5}}
        file.write(json.dumps(line) + "\n")

    registry.runs.mirror_metrics(run_id, curve, is_complete=True)

    assert steps_of(registry, run_id, "sft/heldout_loss") == [2]
    assert steps_of(registry, run_id) == [0, 1, 2]


def test_a_long_curve_goes_over_in_several_requests(registry, tmp_path, lifecycle):
    curve = tmp_path / "metrics.jsonl"
    run_id = registry.runs.run_for(lifecycle, "sft", "sft", "a" * 64, attempt="a1")
    write_curve(curve, range(1200))  # 2400 points

    registry.runs.mirror_metrics(run_id, curve, is_complete=True)

    assert steps_of(registry, run_id) == list(range(1200))
    assert client_of(registry).get_run(run_id).data.tags[MIRRORED] == "1199"


def test_an_interrupted_or_doubled_mirror_leaves_each_point_once(registry, tmp_path, lifecycle):
    curve = tmp_path / "metrics.jsonl"
    run_id = registry.runs.run_for(lifecycle, "sft", "sft", "a" * 64, attempt="a1")
    write_curve(curve, range(10))
    registry.runs.mirror_metrics(run_id, curve, is_complete=True)
    # What a slower second flow does: it puts the mark back, so that points are sent again.
    client_of(registry).set_tag(run_id, MIRRORED, "4")

    registry.runs.mirror_metrics(run_id, curve, is_complete=True)

    assert steps_of(registry, run_id) == list(range(10))


def test_registering_completes_the_curve(registry, store, finish, lifecycle):
    manifest = finish("sft")
    write_curve(store.attempt_of(manifest).metrics, range(4))

    ref = registry.register(manifest, lifecycle=lifecycle)

    assert steps_of(registry, ref.run_id) == [0, 1, 2, 3]
    assert client_of(registry).get_run(ref.run_id).info.start_time == 1_000_000


def test_a_stage_made_anew_has_another_run_and_its_own_curve(registry, store, finish, lifecycle):
    old = finish("sft", seed=1)
    write_curve(store.attempt("sft", old.key, "a1").metrics, range(8))
    first = registry.register(old, lifecycle=lifecycle)
    store.set_aside("sft", old.key, once_for="flow-2")
    assert registry.runs.run_for(lifecycle, "sft", "sft", old.key, attempt="a1") == first.run_id

    run_id = registry.runs.run_for(lifecycle, "sft", "sft", old.key, attempt="a2")
    curve = store.attempt("sft", old.key, "a2").metrics
    curve.parent.mkdir()
    write_curve(curve, range(3))
    registry.runs.mirror_metrics(run_id, curve, is_complete=True)

    assert run_id != first.run_id
    assert steps_of(registry, run_id) == [0, 1, 2]
    assert steps_of(registry, first.run_id) == list(range(8))


def test_an_attempt_that_resumes_an_unfinished_one_goes_on_in_its_run(registry, lifecycle):
    first = registry.runs.run_for(lifecycle, "sft", "sft", "a" * 64, attempt="a1")

    assert registry.runs.run_for(lifecycle, "sft", "sft", "a" * 64, attempt="a2") == first
    assert client_of(registry).get_run(first).data.tags[ATTEMPT] == "a2"


# --------------------------------------------------------------------------- references


def test_a_reference_resolves_by_alias_and_by_number(registry, finish, lifecycle):
    ref = registry.register(finish("sft", metrics={"loss": 0.5}), lifecycle=lifecycle)

    assert registry.models.resolve(f"models:/{lifecycle}.policy@sft") == ref
    assert registry.models.resolve(f"models:/{lifecycle}.policy/1") == ref


def test_a_reference_to_nothing_names_what_there_is(registry, finish, lifecycle):
    registry.register(finish("sft"), lifecycle=lifecycle)

    name = f"{lifecycle}.policy"
    for missing in (f"models:/{name}@champion", f"models:/{name}/2"):
        with pytest.raises(ConfigError, match=r"aliases \{'sft': 1\} and versions \[1\]"):
            registry.models.resolve(missing)
    with pytest.raises(ConfigError, match="aliases none and versions none"):
        registry.models.resolve("models:/no-such-model/1")
    with pytest.raises(ConfigError, match="expected models:/"):
        registry.models.resolve(name)


# ------------------------------------------------------------------- outages and resync


def test_a_server_that_is_away_is_told_at_once(store, finish, lifecycle, own_server):
    registry = Registry(own_server.uri, store)
    started = time.monotonic()

    with pytest.raises(TransientError, match=own_server.uri):
        registry.register(finish("sft"), lifecycle=lifecycle)

    assert time.monotonic() - started < 5


def test_a_password_in_the_address_is_shown_to_nobody(store):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    registry = Registry(f"http://ann:s3cret@127.0.0.1:{port}", store)

    with pytest.raises(TransientError) as raised:
        registry.models.aliases("tiny.policy")

    assert f"http://127.0.0.1:{port}" in str(raised.value)
    assert "s3cret" not in "".join(traceback.format_exception(raised.value))


def test_what_an_outage_interrupted_is_caught_up_afterwards(store, finish, lifecycle, own_server):
    own_server.start()
    registry = Registry(own_server.uri, store)
    manifest = finish("sft")
    curve = store.attempt("sft", manifest.key, "a1").metrics
    write_curve(curve, range(4))
    run_id = registry.runs.run_for(lifecycle, "sft", "sft", manifest.key, attempt="a1")
    registry.runs.mirror_metrics(run_id, curve)

    own_server.stop()
    write_curve(curve, range(4, 8))
    with pytest.raises(TransientError):
        registry.runs.mirror_metrics(run_id, curve)
    with pytest.raises(TransientError):
        registry.register(manifest, lifecycle=lifecycle)

    own_server.start()
    ref = registry.register(manifest, lifecycle=lifecycle)
    assert ref.run_id == run_id
    assert steps_of(registry, run_id) == list(range(8))

    # The database is lost altogether: everything comes back from the store.
    own_server.stop()
    (own_server.folder / "mlflow.db").unlink()
    own_server.start()
    (again,) = registry.resync(lifecycle)
    assert (again.version, again.digest) == (1, ref.digest)
    assert again.run_id != run_id
    assert steps_of(registry, again.run_id) == list(range(8))
    assert registry.models.resolve(f"models:/{lifecycle}.policy@sft") == again


def test_resync_takes_what_the_lifecycle_asked_for_and_names_what_is_broken(
    registry, store, finish, lifecycle
):
    whole, broken, foreign = finish("sft"), finish("dpo-1"), finish("dpo-2")
    registry.register(whole, lifecycle=lifecycle)
    registry.runs.run_for(lifecycle, broken.stage, broken.step, broken.key, attempt="a1")
    registry.register(foreign, lifecycle=f"{lifecycle}-other")
    shutil.rmtree(store.artifact_dir(broken))

    with pytest.raises(IntegrityError, match=broken.key):
        registry.resync(lifecycle)

    assert registry.models.aliases(f"{lifecycle}.policy") == {"sft": 1}
