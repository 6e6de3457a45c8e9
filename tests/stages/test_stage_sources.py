"""What a config points at outside the graph."""

import pytest

from stages.identity import digest_of_tree
from stages.sft import Config as SftConfig
from stages.sources import digests_of_sources, local_sources, missing_sources, rooted
from training_core.errors import DataError

CONFIG = SftConfig.model_validate(
    {
        "base": {"name": "local", "path": "models/tiny"},
        "data": {"name": "files", "path": "rows.jsonl"},
        "eval_data": {"name": "cafe"},
    }
)


def test_relative_paths_are_joined_to_the_root_and_absolute_ones_stay(tmp_path):
    found = rooted(CONFIG, tmp_path)
    assert dict(local_sources(found)) == {
        "base.path": str(tmp_path / "models/tiny"),
        "data.path": str(tmp_path / "rows.jsonl"),
    }
    assert rooted(found, tmp_path / "elsewhere") == found
    assert CONFIG.data.path == "rows.jsonl"  # the config itself is frozen


def test_a_missing_path_is_named_with_its_field(tmp_path):
    (tmp_path / "rows.jsonl").write_text("{}")
    config = rooted(CONFIG, tmp_path)
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
    config = rooted(CONFIG, tmp_path)
    before = digests_of_sources(config)
    assert before == {
        "base.path": digest_of_tree(tmp_path / "models/tiny"),
        "data.path": digest_of_tree(tmp_path / "rows.jsonl"),
    }
    (tmp_path / "models/tiny/config.json").write_text("2")
    after = digests_of_sources(config)
    assert after["base.path"] != before["base.path"]
    assert after["data.path"] == before["data.path"]
