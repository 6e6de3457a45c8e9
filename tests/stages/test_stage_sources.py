"""What a config points at outside the graph."""

import pytest
from pydantic import ValidationError

from stages.catalog import STAGES
from stages.configs.data_config import MixedDataConfig
from stages.configs.evaluation_config import EvaluationConfig
from stages.configs.sft_config import SftConfig
from stages.runtime.sources import (
    digests_of_sources,
    local_sources,
    missing_sources,
    pin_revisions,
    resolve_paths,
)
from stages.runtime.stage_key import digest_of_tree, stage_key
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


# ------------------------------------------- the code of a Python reward


def rewarded(path, **arguments):
    reward = {"name": "python", "path": str(path), "arguments": arguments}
    return EvaluationConfig.model_validate({"prompts": {"name": "cafe"}, "reward": reward})


def key_of(config):
    return stage_key(STAGES["evaluation"], config, digests_of_sources(config))


def test_the_file_of_a_reward_is_rooted_and_a_module_stays_as_it_is(tmp_path):
    assert resolve_paths(rewarded("own/r.py:f"), tmp_path).reward.path == f"{tmp_path}/own/r.py:f"
    assert resolve_paths(rewarded("own.r:f"), tmp_path).reward.path == "own.r:f"


def test_the_key_sees_code_function_and_arguments_of_a_reward_and_not_where_it_is(tmp_path):
    text = "def f(r): return 1\ndef g(r): return 1"
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "r.py").write_text(text)
    known = key_of(rewarded(f"{tmp_path}/a/r.py:f"))
    assert key_of(rewarded(f"{tmp_path}/b/r.py:f")) == known
    assert key_of(rewarded(f"{tmp_path}/a/r.py:g")) != known
    assert key_of(rewarded(f"{tmp_path}/a/r.py:f", limit=1)) != known
    (tmp_path / "b/r.py").write_text(text + "\n")
    assert key_of(rewarded(f"{tmp_path}/b/r.py:f")) != known


def test_the_key_sees_every_file_of_the_package_that_a_reward_is_in(tmp_path, monkeypatch):
    package = tmp_path / "own_rewards_b"
    (package / "below").mkdir(parents=True)
    for name in ("__init__.py", "rules.py", "below/__init__.py", "below/texts.py"):
        (package / name).write_text("raise RuntimeError('nobody runs this for a digest')\n")
    (package / "below/texts.py").write_text("def f(r): return 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = rewarded("own_rewards_b.below.texts:f")
    known = key_of(config)
    (package / "__pycache__").mkdir()
    (package / "__pycache__/rules.pyc").write_text("compiled")
    assert key_of(config) == known
    (package / "rules.py").write_text("LIMIT = 2")
    assert key_of(config) != known


def test_the_key_sees_a_module_without_a_package_and_no_other_file(tmp_path, monkeypatch):
    (tmp_path / "own_reward_c.py").write_text("def f(r): return 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    known = key_of(rewarded("own_reward_c:f"))
    (tmp_path / "neighbour.py").write_text("")
    assert key_of(rewarded("own_reward_c:f")) == known
    (tmp_path / "own_reward_c.py").write_text("def f(r): return 2")
    assert key_of(rewarded("own_reward_c:f")) != known


@pytest.mark.parametrize(
    ("path", "text", "problem"),
    [
        ("gone.py:f", None, "there is no file {folder}/gone.py"),
        ("r.py:f", "def g(r): return 1", "there is no function 'f' in {folder}/r.py"),
        ("r.py:f", "def f(r) return 1", "{folder}/r.py is not Python: "),
        ("nowhere_at_all.r:f", None, "there is no Python module 'nowhere_at_all.r'"),
        ("json.nowhere:f", None, "there is no Python module 'json.nowhere'"),
        ("__main__:f", None, "there is no Python module '__main__'"),
        ("json:f", None, "there is no function 'f' in "),
    ],
)
def test_code_that_is_not_there_is_named_before_anything_runs(tmp_path, path, text, problem):
    if text is not None:
        (tmp_path / "r.py").write_text(text)
    config = resolve_paths(rewarded(path), tmp_path)
    (missing,) = missing_sources(config, "evaluation.")
    assert missing.startswith("evaluation.reward.path: " + problem.format(folder=tmp_path))
    with pytest.raises(DataError, match=r"reward\.path: there is no|is not Python"):
        digests_of_sources(config)


@pytest.mark.parametrize(
    "text",
    [
        "def f(r): return 1",
        "f = print",
        "from json import loads as f",
        "from json import *",
        "try:\n    import f\nexcept ImportError:\n    pass",
    ],
)
def test_every_way_to_give_a_function_its_name_counts(tmp_path, text):
    (tmp_path / "r.py").write_text(text)
    assert missing_sources(rewarded(f"{tmp_path}/r.py:f")) == []


@pytest.mark.parametrize("path", ["r.py", "r:f:", "r.py:", "a-b:f", ":f", "r.py:f g"])
def test_a_path_that_names_no_function_is_refused(path):
    with pytest.raises(ValidationError, match=r"expected file.py:function or package.module:"):
        rewarded(path)


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {1, 2}, {"a": {1: 2}}])
def test_arguments_are_what_json_can_say(value):
    with pytest.raises(
        ValidationError, match=r"reward.python.arguments\n.*values that JSON can represent"
    ):
        rewarded("r.py:f", limit=value)
