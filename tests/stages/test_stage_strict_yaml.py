"""YAML as presets, configs and assignments have it: what it means, and what is refused."""

import os

import pytest

from stages.strict_yaml import parse_yaml, read_yaml
from training_core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8), ("-8", -8), ("+8", 8), ("0", 0), ("0x1F", 31), ("0o17", 15),
        ("1.5", 1.5), ("1e-5", 1e-5), ("5E3", 5000.0), (".5", 0.5), ("2.", 2.0), ("-1.0e-5", -1e-5),
        ("true", True), ("False", False), ("null", None), ("~", None), ("", None),
        ("yes", "yes"), ("no", "no"), ("on", "on"), ("Off", "Off"), ("y", "y"),
        ("1:30", "1:30"), ("1_000", "1_000"), ("0b11", "0b11"), ("2024-01-31", "2024-01-31"),
        ("'8'", "8"), ('"true"', "true"), ("!!str 8", "8"), ("=", "="), ("<<", "<<"),
        ("[1, a, 2.5]", [1, "a", 2.5]), ("{a: {b: 1}}", {"a": {"b": 1}}), ("a # b", "a"),
    ],
)  # fmt: skip
def test_values_are_those_of_yaml_1_2(text, value):
    found = parse_yaml(f"k: {text}", "here")["k"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: 1\nb: 2\na: 3", r"here, line 3: expected each key once, found .a. also in line 1;"),
        ("x: {a: 1, a: 1}", r"line 1: expected each key once, found 'a' also in line 1"),
        ("a: 010", r"a leading zero, found 010, .*write 10 for a number or '010' in quotes"),
        ("a: -010", r"a leading zero, found -010"),
        ("a: 1e400", r"expected a finite number, found 1e400; write"),
        ("a: .inf", r"finite number, found \.inf"),
        ("a: -.Inf", r"finite number, found -\.Inf"),
        ("a: .nan", r"finite number, found \.nan"),
        (f"a: {'9' * 5000}", r"expected at most 40 digits, found 5000"),
        ("1: a", r"expected a key that is text, found 1; write it in quotes"),
        ("true: a", r"expected a key that is text, found True"),
        ("? [a]\n: 1", r"expected a key that is text, found \['a'\]"),
        ("a: !!python/object:os.system x", r"without a tag, found 'tag:yaml.*os.system'"),
        ("a: !mine x", r"without a tag, found '!mine'; remove it"),
        ("a: !!str {b: 1}", r"without a tag, found '.*str'"),
        ("a: !!int '8'", r"without a tag, found '.*int'"),
        ("a: &x [*x]", r"line 1: expected a value, found an alias inside of what it stands for"),
        ("a: b: c", r"here, line 1 is not YAML: mapping values are not allowed"),
        ("{", r"here, line 1 is not YAML: .*close every bracket"),
        ("*x", r"line 1 is not YAML: found undefined alias"),
        ("a: 1\n---\nb: 2", r"line 2 is not YAML"),
        ("a: \x01", r"here is not YAML: .*special characters"),
        ("[" * 3000, r"too deep a nesting; write them flat"),
        ("a: &m {b: 1}\nc: {<<: *m, <<: *m}", r"found '<<' also in line 2"),
        ("c: {<<: 3}", r"expected a block behind '<<', found 3"),
    ],
)  # fmt: skip
def test_what_people_misread_is_refused_with_its_line(text, reason):
    with pytest.raises(ConfigError, match=reason):
        parse_yaml(text, "here")


def test_a_key_of_the_block_itself_has_precedence_over_a_merged_one():
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {x: 9, <<: [*a, *b]}"
    assert parse_yaml(text, "here")["c"] == {"x": 9, "y": 1, "z": 2}


def test_aliases_of_aliases_do_not_fill_the_memory():
    layers = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(ConfigError, match="expected at most 100,000 values, found more"):
        parse_yaml("\n".join(["a0: &a0 x", *layers]), "here")


def test_files_that_are_none_are_refused_before_they_are_read(tmp_path):
    pipe, latin = tmp_path / "pipe.yaml", tmp_path / "latin.yaml"
    os.mkfifo(pipe)
    latin.write_bytes(b"a: 1\nb: caf\xe9\n")
    with pytest.raises(
        ConfigError, match=r"pipe\.yaml: expected a YAML file, found a folder, pipe"
    ):
        read_yaml(pipe)
    with pytest.raises(ConfigError, match=r"expected a YAML file, found a folder"):
        read_yaml(tmp_path)
    with pytest.raises(ConfigError, match=r"latin\.yaml, line 2: expected UTF-8.*0xe9; save"):
        read_yaml(latin)
    with pytest.raises(ConfigError, match=r"gone\.yaml' cannot be read: No such file"):
        read_yaml(tmp_path / "gone.yaml")
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    with pytest.raises(ConfigError, match=r"loop\.yaml' cannot be read: Too many levels"):
        read_yaml(tmp_path / "loop.yaml")
