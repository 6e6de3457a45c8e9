"""Presets and overrides, where the contracts do not look: merging, assignments, broken files."""

from __future__ import annotations

import json
import math
import os

import pytest

from flows.config import presets
from flows.config.presets import deep_merge, load_config, parse_assignments
from flows.full_rlhf import full_rlhf
from training_core.errors import ConfigError


def test_blocks_are_merged_key_by_key_and_a_none_is_a_value():
    base = {"sft": {"seed": 1, "data": {"name": "cafe", "size": 9}}, "name": "tiny"}
    changes = {"sft": {"data": {"size": 3}, "seed": None}, "kto": None}
    assert deep_merge(base, changes) == {
        "sft": {"seed": None, "data": {"name": "cafe", "size": 3}},
        "name": "tiny",
        "kto": None,
    }
    assert base["sft"]["data"]["size"] == 9


def test_a_block_of_another_name_replaces_the_old_one_whole():
    base = {"data": {"name": "cafe", "size": 9}}
    assert deep_merge(base, {"data": {"name": "files", "path": "x"}}) == {
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
    with pytest.raises(
        ConfigError, match=r"no preset 'zzz'.*there are: gemma-7b, gemma2-9b-simpo, llama3-70b"
    ):
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


def test_an_evaluation_that_a_shared_block_asks_for_and_no_data_answers_is_refused():
    training = {"eval_every_steps": 20}
    with pytest.raises(ConfigError) as caught:
        load_config(
            "tiny", {"sft": {"training": training}, "rejection_sft": {"training": training}}
        )
    _, *lines = str(caught.value).splitlines()  # `sft` has `eval_data`
    assert lines == [
        "  rejection_sft: training.eval_every_steps and training.best_metric need held-out rows, "
        "and there are none; set eval_data, or remove the two"
    ]


def test_rounds_and_delays_have_limits():
    wrong = {
        "iterative_dpo": {"rounds": 10**9},
        "raft": {"rounds": 10**9},
        "retries": {"delay_seconds": [1, -1]},
    }
    with pytest.raises(ConfigError) as caught:
        load_config("tiny", wrong)
    _, *lines = str(caught.value).splitlines()
    assert sorted(line.removesuffix("; change it") for line in lines) == [
        "  iterative_dpo.rounds: Input should be less than or equal to 1000 (found 1000000000)",
        "  raft.rounds: Input should be less than or equal to 1000 (found 1000000000)",
        "  retries.delay_seconds.1: Input should be greater than or equal to 0 (found -1)",
    ]


def test_a_null_unsets_a_field_that_may_be_none_and_nothing_else():
    plain = load_config("tiny")
    assert plain.sft.eval_data is not None
    for overrides in ({"sft": {"eval_data": None}}, parse_assignments(["sft.eval_data=null"])):
        changed = load_config("tiny", overrides)
        assert changed == plain.model_copy(
            update={"sft": plain.sft.model_copy(update={"eval_data": None})}
        )


def test_a_form_whose_blocks_were_opened_and_left_empty_changes_nothing():
    form = {"ppo": {}, "sft": {"training": {}}, "dpo": {"loss": {}}}
    assert load_config("tiny", form) == load_config("tiny")


def test_a_null_in_a_preset_unsets_what_its_base_sets(tmp_path):
    (tmp_path / "mine.yaml").write_text("base: tiny\nsft: {eval_data: null}")
    assert load_config(str(tmp_path / "mine.yaml")).sft.eval_data is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"sft: {data: ", r"broken\.yaml, line 1 is not YAML"),
        (b"", r"broken\.yaml: expected the blocks of a lifecycle, found None; write one block"),
        (b"- sft", r"broken\.yaml: expected the blocks of a lifecycle, found \['sft'\]"),
        (
            b"sft: {seed: 1}\ndpo: {}\nsft: {seed: 2}",
            r"broken\.yaml, line 3: .* found 'sft' also in line 1",
        ),
        (b"name: caf\xe9", r"broken\.yaml, line 1: expected UTF-8"),
        (b"base: broken", r"based on each other: broken\.yaml -> broken\.yaml; remove one `base`"),
        (
            b"base: [tiny]",
            r"broken\.yaml: expected a preset as `base`, found \['tiny'\]; name it",
        ),
        (b"base: tinny", r"broken\.yaml: `base`: there is no preset 'tinny'"),
    ],
)
def test_a_broken_file_is_named(tmp_path, monkeypatch, content, reason):
    (tmp_path / "broken.yaml").write_bytes(content)
    monkeypatch.setattr(presets, "PRESETS", tmp_path)
    with pytest.raises(ConfigError, match=reason):
        load_config("broken")


def test_presets_that_are_based_on_each_other_are_refused_with_the_chain(tmp_path):
    for name, base in (("a", "b"), ("b", "c"), ("c", "a")):
        (tmp_path / f"{name}.yaml").write_text(f"base: {base}.yaml")
    with pytest.raises(ConfigError, match=r"a\.yaml -> b\.yaml -> c\.yaml -> a\.yaml"):
        load_config(str(tmp_path / "a.yaml"))


def test_a_pipe_is_no_preset(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ConfigError, match=r"pipe\.yaml: expected a YAML file"):
        load_config(str(tmp_path / "pipe.yaml"))


def test_a_preset_may_be_a_file_anywhere_and_its_base_is_beside_it(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("base: common.yaml\nppo: {steps: 7}")
    (tmp_path / "common.yaml").write_text("base: tiny\nname: mine\nppo: {kl_coef: 0.5, steps: 3}")
    config = load_config(str(tmp_path / "mine.yaml"))
    assert (config.name, config.ppo.steps, config.ppo.kl_coef) == ("mine", 7, 0.5)
    assert config.sft == load_config("tiny").sft
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    assert load_config("../mine.yaml") == config
    with pytest.raises(ConfigError, match=r"'mine\.yaml' cannot be read: No such file"):
        load_config("mine.yaml")


def test_relative_paths_of_a_preset_outside_of_the_repository_start_at_its_folder(
    tmp_path, monkeypatch
):
    monkeypatch.delenv("RATCHET_SHARED", raising=False)
    rows = "sft: {data: {name: files, path: rows.jsonl}}"
    files = {
        "plain.yaml": f"base: tiny\n{rows}",
        "mine.yaml": f"base: tiny\ndata_root: data\n{rows}",
        "sub/child.yaml": "base: ../mine.yaml",
        "sub/own.yaml": "base: ../mine.yaml\ndata_root: .",
        "of_ours.yaml": f"base: tinystories\n{rows}",
    }
    (tmp_path / "sub").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    shared = presets.ROOT.parent / "shared" / "data"
    expected = {
        "plain.yaml": tmp_path / "rows.jsonl",
        "mine.yaml": tmp_path / "data" / "rows.jsonl",
        "sub/child.yaml": tmp_path / "data" / "rows.jsonl",
        "sub/own.yaml": tmp_path / "sub" / "rows.jsonl",
        "of_ours.yaml": shared / "rows.jsonl",
    }
    found = {name: load_config(str(tmp_path / name)).sft.data.path for name in files}
    assert found == {name: str(path) for name, path in expected.items()}

    monkeypatch.chdir(tmp_path / "sub")
    assert load_config("../mine.yaml").sft.data.path == found["mine.yaml"]
    overridden = load_config("../mine.yaml", {"data_root": "other"})
    assert overridden.sft.data.path == str(tmp_path / "other" / "rows.jsonl")
    ours = presets.PRESETS / "tinystories.yaml"
    assert load_config(str(ours)) == load_config("tinystories")


@pytest.mark.parametrize("preset", ["../tiny", "/etc/passwd", "a/b", "", ".", "tiny\n", "t" * 300])
def test_a_preset_without_the_suffix_is_a_name(preset):
    with pytest.raises(
        ConfigError, match=r"expected the name of a preset in .* or the path of a f"
    ):
        load_config(preset)


@pytest.mark.parametrize(
    "name", ["../../x", "a/b", "a.b", "a:b", "a b", "tiny\n", "x" * 300, "", "/abs", "_x"]
)
def test_a_lifecycle_has_a_name_that_files_and_models_can_have(name):
    with pytest.raises(ConfigError, match=r"name: .*expected letters, digits, '_' and '-'"):
        load_config("tiny", {"name": name})


@pytest.mark.parametrize(
    ("assignment", "reason"),
    [
        ("sft.seed=yes", r"sft\.seed: .*integer \(found 'yes'\); write a whole number"),
        ("sft.seed=true", r"sft\.seed: .*integer \(found True\)"),
        ("sft.seed=1.0", r"sft\.seed: .*integer \(found 1\.0\)"),
        ("sft.seed='1'", r"sft\.seed: .*integer \(found '1'\)"),
        ("sft.seed=1:30", r"sft\.seed: .*\(found '1:30'\)"),
        ("sft.seed=1_000", r"sft\.seed: .*\(found '1_000'\)"),
        ("sft.seed=010", r"the value of 'sft.seed=010', line 1: .* a leading zero, found 010"),
        ("sft.seed=67108864", r"sft\.seed: .*less than 67108864"),
        ("sft.seed=99999999999999999999", r"sft\.seed: .*less than 67108864"),
        ("ppo.kl_coef=true", r"ppo\.kl_coef: .*number \(found True\); write a number"),
        ("ppo.kl_coef='0.1'", r"ppo\.kl_coef: .*number \(found '0\.1'\)"),
        ("ppo.kl_coef=1e400", r"expected a finite number, found 1e400"),
        ("ppo.kl_coef=.inf", r"expected a finite number, found \.inf"),
        ("sft.model.gradient_checkpointing=yes", r"boolean \(found 'yes'\); write true or false"),
        ("sft.model.gradient_checkpointing=1", r"boolean \(found 1\); write true or false"),
        ("sft.chat_template=8", r"chat_template: .*string \(found 8\); write a text"),
        ("sft.resources.memory_gib=-1", r"memory_gib: .*greater than 0 \(found -1\)"),
        ("retries.delay_seconds=[1, -5]", r"delay_seconds\.1: .*greater than or equal to 0"),
        (
            'sft.data={name: files, path: "a\\0b"}',
            r"sft\.data\.files: `path`: expected a text without NUL; remove",
        ),
        (
            "sft.seed=null",
            r"sft\.seed: expected a value, found null; write one, or leave the key out",
        ),
        (
            "ppo.reward=null",
            r"ppo\.reward: expected a block with `name`, found None; there are: cafe",
        ),
        ("sft.seed=", r"expected a value behind 'sft\.seed=', found none \(is a variable"),
        ("sft.seed= ", r"expected a value behind"),
        ("sft..seed=1", r"expected <dotted\.key>=<value>, found 'sft\.\.seed=1'"),
        ("=1", r"expected <dotted\.key>=<value>"),
        ("sft.seed=a: b: c", r"the value of 'sft\.seed=a: b: c', line 1 is not YAML"),
        ("sft.seed={", "is not YAML"),
        ("sft.seed=*x", "is not YAML: found undefined alias"),
        ("sft={seed: 1, seed: 2}", "found 'seed' also in line 1"),
    ],
)
def test_what_an_assignment_does_not_mean_is_refused(assignment, reason):
    with pytest.raises(ConfigError, match=reason):
        load_config("tiny", parse_assignments([assignment]))


def test_infinity_is_refused_where_a_form_or_python_gives_it():
    for value in (math.inf, -math.inf, math.nan):
        with pytest.raises(ConfigError, match=r"ppo\.kl_coef: .*finite number"):
            load_config("tiny", {"ppo": {"kl_coef": value}})


def test_an_integer_is_a_number_of_any_kind_and_lists_are_tuples():
    config = load_config("tiny", {"ppo": {"kl_coef": 1}, "retries": {"delay_seconds": [1, 2.5]}})
    assert (config.ppo.kl_coef, config.retries.delay_seconds) == (1.0, (1.0, 2.5))
    again = type(config).model_validate(json.loads(json.dumps(config.model_dump(mode="json"))))
    assert again == config


def test_a_flow_converts_no_override_so_that_a_wrong_value_is_told_with_its_key():
    given = {"overrides": {"sft": {"seed": True}, "retries": {"limit": "3"}}}
    with pytest.raises(ConfigError) as caught:
        load_config("tiny", full_rlhf.validate_parameters(given)["overrides"])
    assert "sft.seed: Input should be a valid integer (found True)" in str(caught.value)
    assert "retries.limit: Input should be a valid integer (found '3')" in str(caught.value)


def test_a_misspelled_preset_gets_the_nearest_name():
    with pytest.raises(ConfigError, match="did you mean 'tiny'"):
        load_config("tinny")
    with pytest.raises(ConfigError, match=r"there are: .*llama3-8b.*tinystories"):
        load_config("zzz")
