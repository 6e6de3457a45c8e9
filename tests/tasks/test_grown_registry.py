"""What a registry that has grown old is asked: nothing that grows with the number of versions."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
import requests

from tasks.registry import Registry
from tasks.registry.registered_models import NEWEST_PAGE

pytestmark = pytest.mark.services

WHOLE_MODEL = {"registered-models/search", "registered-models/get"}
"""For these MLflow reads every version of a model."""


@contextmanager
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Note what is asked of MLflow, e.g. `model-versions/get`."""
    found: list[str] = []
    send = requests.Session.request

    def noted(session, method, url, **options):
        found.append(urlsplit(url).path.partition("/mlflow/")[2])
        return send(session, method, url, **options)

    with monkeypatch.context() as patch:
        patch.setattr(requests.Session, "request", noted)
        yield found


def add_versions(registry: Registry, name: str, count: int) -> None:
    """Versions of another step, without files."""
    for _ in range(count):
        tags = {"step": "dpo-1", "stage_key": uuid.uuid4().hex, "digest": "d" * 64}
        registry.models.append(name, f"models:/{name}/1", tags)


def test_a_new_result_costs_the_same_requests_however_many_versions_there_are(
    registry, finish, lifecycle, monkeypatch
):
    registry.register(finish("sft", seed=1), lifecycle=lifecycle)
    with asked(monkeypatch) as young:
        registry.register(finish("sft", seed=2), lifecycle=lifecycle)
    add_versions(registry, f"{lifecycle}.policy", NEWEST_PAGE + 1)

    with asked(monkeypatch) as old:
        ref = registry.register(finish("sft", seed=3), lifecycle=lifecycle)

    assert old == young
    assert not WHOLE_MODEL & set(old)
    assert registry.models.aliases(ref.name) == {"sft": ref.version}


def test_an_alias_is_resolved_without_reading_the_other_versions(
    registry, finish, lifecycle, monkeypatch
):
    ref = registry.register(finish("sft"), lifecycle=lifecycle)

    with asked(monkeypatch) as found:
        assert registry.models.resolve(f"models:/{ref.name}@sft") == ref

    assert found == ["registered-models/alias"]


def test_the_newest_version_of_a_step_is_found_behind_many_of_other_steps(
    registry, finish, lifecycle
):
    first, last = (
        registry.register(finish("sft", seed=seed), lifecycle=lifecycle) for seed in (1, 2)
    )
    add_versions(registry, first.name, NEWEST_PAGE + 1)
    models = registry.models
    assert models.newest(first.name, "sft") == last.version
    assert models.newest(first.name, "ppo") is None

    models.set_alias(first.name, "sft", first.version)  # as a slower process leaves it
    models.hold_aliases(first.name, lambda: {"sft": models.newest(first.name, "sft")})

    assert models.aliases(first.name)["sft"] == last.version


def test_two_results_of_one_key_are_two_versions(registry, store, finish, lifecycle):
    first = finish("sft", seed=1)
    one = registry.register(first, lifecycle=lifecycle)
    store.set_aside("sft", first.key, once_for="flow-2")
    again = finish("sft", seed=2, key=first.key, attempt="a2")

    two = registry.register(again, lifecycle=lifecycle)

    assert (one.version, two.version) == (1, 2)
    assert (one.stage_key, two.digest) == (two.stage_key, again.digest)
