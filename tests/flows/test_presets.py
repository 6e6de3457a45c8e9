"""Presets and overrides, where the contracts do not look: merging, assignments, broken files."""

from __future__ import annotations

import pytest

from flows.config.lifecycle_config import Overrides
from flows.config.presets import deep_merge, load_config, parse_assignments
from training_core.errors import ConfigError


def test_blocks_are_merged_key_by_key_and_a_none_changes_nothing():
    base = {"sft": {"seed": 1, "data": {"name": "cafe", "size": 9}}, "name": "tiny"}
    changes = {"sft": {"data": {"size": 3}, "seed": None}, "name": None}
    assert deep_merge(base, changes) == {
        "sft": {"seed": 1, "data": {"name": "cafe", "size": 3}},
        "name": "tiny",
    }
    assert base["sft"]["data"]["size"] == 9


def test_a_block_of_another_name_replaces_the_old_one_whole():
    base = {"data": {"name": "cafe", "size": 9}}
    assert deep_merge(base, {"data": {"name": "files", "path": "x", "skip": None}}) == {
        "data": {"name": "files", "path": "x"}
    }
    assert deep_merge(base, {"data": {"name": "cafe", "seed": 2}}) == {
        "data": {"name": "cafe", "size": 9, "seed": 2}
    }


def test_assignments_are_nested_yaml_and_later_ones_win():
    given = ["ppo.kl_coef=0.05", "ppo.kl_coef=0.1", "raft={rounds: 2}", "retries.limit=0"]
    assert parse_assignments(given) == {
        "ppo": {"kl_coef": 0.1},
        "raft": {"rounds": 2},
        "retries": {"limit": 0},
    }
    with pytest.raises(ConfigError, match=r"expected <dotted\.key>=<value>, found 'ppo'"):
        parse_assignments(["ppo"])


def test_an_unknown_preset_without_a_near_name_lists_all():
    with pytest.raises(ConfigError, match=r"no preset 'zzz'.*there are: llama3-8b, tiny, tiny"):
        load_config("zzz")


def test_a_key_that_is_like_no_other_lists_those_that_are_known():
    with pytest.raises(ConfigError, match=r"raft\.qqqq: unknown key; known are: rounds"):
        load_config("tiny", {"raft": {"qqqq": 1}})


def test_every_wrong_key_and_value_is_named_at_once():
    wrong = {"raft": {"rounds": 0}, "ppo": {"kl_koef": 1}}
    with pytest.raises(ConfigError) as caught:
        load_config("tiny", wrong)
    first, *lines = str(caught.value).splitlines()
    assert first == "preset 'tiny' with its overrides is not valid:"
    assert sorted(line.split(":")[0].strip() for line in lines) == ["ppo.kl_koef", "raft.rounds"]


def test_a_form_with_only_empty_fields_changes_nothing():
    form = Overrides.model_validate({"ppo": {"kl_coef": None}, "sft": None})
    assert load_config("tiny", form.model_dump(exclude_unset=True)) == load_config("tiny")
