"""What a config points at outside the graph."""

import pytest

from stages.configs.data_config import MixedDataConfig
from stages.configs.sft_config import SftConfig
from stages.runtime.sources import (
    digests_of_sources,
    local_sources,
    missing_sources,
    pin_revisions,
    resolve_paths,
)
from stages.runtime.stage_key import digest_of_tree
from training_core.errors import DataError

CONFIG = SftConfig.model_validate(
    {
        "base": {"name": "local", "path": "models/tiny"},
        "data": {"name": "files", "path": "rows.jsonl"},
        "eval_data": {"name": "cafe"},
    }
)


def test_relative_paths_are_joined_to_the_root_and_absolute_ones_stay(tmp_path):
    found = resolve_paths(CONFIG, tmp_path)
    assert dict(local_sources(found)) == {
        "base.path": str(tmp_path / "models/tiny"),
        "data.path": str(tmp_path / "rows.jsonl"),
    }
    assert resolve_paths(found, tmp_path / "elsewhere") == found
    assert CONFIG.data.path == "rows.jsonl"  # the config itself is frozen


def test_a_missing_path_is_named_with_its_field(tmp_path):
    (tmp_path / "rows.jsonl").write_text("{}")
    config = resolve_paths(CONFIG, tmp_path)
    (missing,) = missing_sources(config, "sft.")
    assert missing.startswith(
        f"sft.base.path: there is no file or directory {tmp_path}/models/tiny"
    )
    with pytest.raises(DataError, match=r"base\.path: there is no file or directory .*models/tiny"):
        digests_of_sources(config)


def test_the_digests_are_of_the_contents(tmp_path):
    (tmp_path / "rows.jsonl").write_text("{}")
    (tmp_path / "models/tiny").mkdir(parents=True)
    (tmp_path / "models/tiny/config.json").write_text("1")
    config = resolve_paths(CONFIG, tmp_path)
    before = digests_of_sources(config)
    assert before == {
        "base.path": digest_of_tree(tmp_path / "models/tiny"),
        "data.path": digest_of_tree(tmp_path / "rows.jsonl"),
    }
    (tmp_path / "models/tiny/config.json").write_text("2")
    after = digests_of_sources(config)
    assert after["base.path"] != before["base.path"]
    assert after["data.path"] == before["data.path"]


# ------------------------------------------- family 33: what is left out of the key


MIXED = SftConfig.model_validate(
    {
        "data": {
            "name": "mixed",
            "parts": [
                {"data": {"name": "files", "path": "a.jsonl"}},
                {"data": {"name": "files", "path": ["b.jsonl", "c.jsonl"]}, "weight": 2},
                {"data": {"name": "hub", "repo": "x/y"}},
                {"data": {"name": "cafe"}},
            ],
        }
    }
)


def test_every_part_of_a_mixture_is_found_rooted_and_pinned(tmp_path):
    found = resolve_paths(MIXED, tmp_path)
    assert dict(local_sources(found)) == {
        "data.parts.0.data.path": str(tmp_path / "a.jsonl"),
        "data.parts.1.data.path.0": str(tmp_path / "b.jsonl"),
        "data.parts.1.data.path.1": str(tmp_path / "c.jsonl"),
    }
    asked = []
    fixed = pin_revisions(found, lambda *what: asked.append(what) or "0" * 40)
    assert asked == [("dataset", "x/y", "main")]
    assert isinstance(fixed.data, MixedDataConfig)
    assert fixed.data.parts[2].data.revision == "0" * 40
    assert fixed.data.parts[1] == found.data.parts[1]


def test_a_change_in_any_part_of_a_mixture_changes_its_digest_and_no_other(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.jsonl").write_text(name)
    config = resolve_paths(MIXED, tmp_path)
    before = digests_of_sources(config)
    (tmp_path / "c.jsonl").write_text("C")
    after = digests_of_sources(config)
    assert {field for field in before if before[field] != after[field]} == {
        "data.parts.1.data.path.1"
    }
    (tmp_path / "b.jsonl").unlink()
    (missing,) = missing_sources(config)
    assert missing.startswith("data.parts.1.data.path.0: there is no file or directory")


def test_a_glob_means_its_files_in_order(tmp_path):
    config = SftConfig.model_validate({"data": {"name": "files", "path": "*.jsonl"}})
    config = resolve_paths(config, tmp_path)
    assert missing_sources(config)
    (tmp_path / "b.jsonl").write_text("1")
    one = digests_of_sources(config)
    (tmp_path / "c.jsonl").write_text("2")
    both = digests_of_sources(config)
    assert one != both
    (tmp_path / "c.jsonl").rename(tmp_path / "a.jsonl")  # now it comes first
    assert digests_of_sources(config) != both
