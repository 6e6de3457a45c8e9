"""Which model a person means: a registered version, a directory, or a hub id."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flows.local_services.state import ServiceRecord, ServiceRecords, save_records
from flows.model_use import named_model
from flows.model_use.named_model import find_model
from stages.runtime.stage_key import digest_of_tree
from stages.runtime.store import Store
from tasks.registry import Registry
from tests.tasks.real_services import finish_stage
from training_core.errors import ConfigError, DataError, IntegrityError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def registered(mlflow_uri, tmp_path, monkeypatch):
    """A registry with two policies and a reward model of the lifecycle `named`."""
    store = Store(tmp_path / "store")
    registry = Registry(mlflow_uri, store)
    for name, value in {
        "RATCHET_HOME": str(tmp_path / "home"),
        "RATCHET_STORE": str(store.root),
        "MLFLOW_TRACKING_URI": mlflow_uri,
        "RAY_ADDRESS": "http://127.0.0.1:1",
    }.items():
        monkeypatch.setenv(name, value)
    lifecycle = f"named-{tmp_path.name[-12:].replace('_', '-')}"
    versions = [
        registry.register(finish_stage(store, step, seed=i, kind=kind), lifecycle=lifecycle)
        for i, (step, kind) in enumerate(
            [("sft", "policy"), ("dpo", "policy"), ("reward_model", "reward_model")]
        )
    ]
    registry.models.set_alias(f"{lifecycle}.policy", "champion", versions[0].version)
    return lifecycle, versions


@pytest.mark.services
def test_a_lifecycle_with_an_alias_or_a_number_is_a_registered_version(registered):
    lifecycle, (sft, dpo, reward_model) = registered
    found = find_model(f"{lifecycle}@champion")
    assert (found.version, found.directory) == (sft, sft.path)
    assert found.name == f"models:/{lifecycle}.policy/{sft.version}"
    assert found.digest == digest_of_tree(sft.path)
    assert find_model(f"{lifecycle}/{dpo.version}").version == dpo
    assert find_model(f"{lifecycle}.policy@dpo").version == dpo
    assert find_model(f"models:/{lifecycle}.policy/{sft.version}").version == sft
    assert find_model(f"{lifecycle}@reward_model", "reward_model").version == reward_model
    with pytest.raises(ConfigError, match=rf"there is no 'models:/{lifecycle}.policy@previous'"):
        find_model(f"{lifecycle}@previous")


@pytest.mark.services
def test_a_damaged_version_is_refused(registered):
    lifecycle, (sft, *_) = registered
    weights = sft.path / "model.safetensors"
    weights.chmod(0o600)
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    with pytest.raises(IntegrityError):
        find_model(f"{lifecycle}@champion")


@pytest.mark.services
def test_the_services_of_ratchet_up_are_found_without_variables(registered, monkeypatch, tmp_path):
    lifecycle, (sft, *_) = registered
    home = tmp_path / "home"
    home.mkdir()
    records = ServiceRecords()
    variables = {"mlflow": "MLFLOW_TRACKING_URI", "ray": "RAY_ADDRESS"}
    for service, variable in variables.items():
        url = named_model.os.environ[variable]
        records = records.with_record(ServiceRecord(name=service, url=url, ports=(1,)))
        monkeypatch.delenv(variable)
    with pytest.raises(ConfigError, match=r"RAY_ADDRESS, MLFLOW_TRACKING_URI must be set"):
        find_model(f"{lifecycle}@champion")
    save_records(home, records)
    assert find_model(f"{lifecycle}@champion").version == sft


def test_a_directory_comes_before_every_other_meaning(tmp_path, monkeypatch):
    (tmp_path / "sums/7").mkdir(parents=True)
    (tmp_path / "sums/7/config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    found = find_model("sums/7")
    assert (found.directory, found.version) == (tmp_path / "sums/7", None)
    assert found.digest == digest_of_tree(Path("sums/7"))


def test_a_hub_id_is_read_from_the_local_cache(tmp_path, monkeypatch, shared_data):
    cache = tmp_path / "hub"
    repository = cache / "models--acme--stories"
    shutil.copytree(shared_data / "models/stories260K", repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(COMMIT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    found = find_model("acme/stories")
    assert found.directory == repository / "snapshots" / COMMIT
    assert found.name == "acme/stories"
    with pytest.raises(DataError, match="acme/gone is no directory, and it could not be read from"):
        find_model("acme/gone")


def test_what_is_none_of_these_is_refused_with_the_forms():
    with pytest.raises(ConfigError, match=r"expected a directory, <lifecycle>@<alias>"):
        find_model("a:b//c")
