"""Manifests that a person, a disk or another version of Ratchet has changed."""

from __future__ import annotations

import json

import pytest

from stages.runtime.manifest import read_manifest
from stages.runtime.stage_key import digest_of
from tests.stages.published import KEY, published
from training_core.errors import ConfigError, IntegrityError


def manifest_file(store, key=KEY):
    return store.stage_dir("sft", key) / "manifest.json"


def changed(store, change, *, is_sealed=False, key=KEY):
    """Publish a stage and change its manifest as a person with an editor would."""
    published(store, key=key)
    path = manifest_file(store, key)
    content = json.loads(path.read_text())
    change(content)
    if is_sealed:
        content.pop("content_digest")
        content["content_digest"] = digest_of(content)
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: c["metrics"].update(loss=0.0), "its content was changed"),
        (lambda c: c.update(files=[]), "its content was changed"),
        (lambda c: c.pop("content_digest"), "expected the content_digest None"),
        (lambda c: c.update(extra=1), "its content was changed"),
        (
            lambda c: c.update(metrics={"loss": True}),
            r"metrics\.loss: Input should be a valid number",
        ),
        (lambda c: c.update(version="1"), r"version: Input should be a valid integer"),
    ],
)
def test_a_changed_number_in_a_manifest_is_found(store, change, reason):
    path = changed(store, change)
    with pytest.raises(IntegrityError, match=rf"manifest\.json: .*{reason}|{reason}"):
        read_manifest(path)
    assert store.find("sft", KEY) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: c["files"][0].update(path="../x"), r"files\.0\.path: .*a path below its folder"),
        (lambda c: c["files"][0].update(path="/etc/passwd"), r"files\.0\.path"),
        (lambda c: c.update(stage="../../x"), r"stage: .*expected letters, digits"),
        (lambda c: c.update(digest="0" * 64), "its `digest` is not that of its `files`"),
        (lambda c: c.update(files=[]), "its `digest` is not that of its `files`"),
    ],
)
def test_a_manifest_cannot_name_other_files_even_if_it_is_sealed(store, change, reason):
    path = changed(store, change, is_sealed=True)
    with pytest.raises(IntegrityError, match=reason):
        read_manifest(path)


@pytest.mark.parametrize("change", [{"attempt": "../a1"}, {"attempt": "x"}, {"key": "j" * 64}])
def test_a_manifest_belongs_to_its_folder(store, change):
    changed(store, lambda c: c.update(change), is_sealed=True)
    assert store.find("sft", KEY) is None
    assert not manifest_file(store).exists()


def test_a_manifest_of_an_earlier_version_has_no_digest_of_its_own(store):
    def as_before(content):
        del content["content_digest"]
        content["schema_version"] = 1

    changed(store, as_before)
    found = store.find("sft", KEY)
    assert found is not None
    assert found.metrics == {"loss": 1.0}


def test_a_manifest_of_a_later_version_is_an_error_and_stays(store):
    changed(store, lambda c: c.update(schema_version=3))
    with pytest.raises(ConfigError, match=r"manifest\.json: expected .*schema 2 .*found 3.*update"):
        store.find("sft", KEY)
    assert manifest_file(store).exists()


def test_one_broken_manifest_is_told_and_the_others_are_listed(store, caplog):
    whole = published(store, key="x" * 64)
    later = changed(store, lambda c: c.update(schema_version=3), key="y" * 64)
    broken = changed(store, lambda c: c.clear(), key="z" * 64)
    assert store.manifests() == [whole]
    told = [record.getMessage() for record in caplog.records]
    assert sum(str(later) in line for line in told) == 1
    assert sum(str(broken) in line for line in told) == 1
    assert told[-1] == f"2 manifest(s) in {store.root} were skipped"


def test_a_broken_manifest_that_was_set_aside_does_not_hide_the_others(store):
    manifest = published(store)
    store.set_aside("sft", KEY, once_for="run-1")
    (store.stage_dir("sft", KEY) / "manifest.set-aside-0.json").write_text("{")
    assert store.find_digest("sft", KEY, manifest.digest) == manifest
    assert store.find_digest("sft", KEY, "0" * 64) is None
