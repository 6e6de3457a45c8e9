"""Bad inputs, generated: each is read as it was meant, or refused with what, why and what to do."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from telling import finite, laws, told

from flows.config.lifecycle_config import LifecycleConfig
from flows.config.presets import PRESETS, load_config, parse_assignments
from stages.runtime.store import Store
from stages.strict_yaml import parse_yaml
from training_core.errors import ConfigError, IntegrityError
from training_core.names import checked_file, is_name, require_name

TINY = (PRESETS / "tiny.yaml").read_text()
scalars = st.sampled_from(
    [
        "yes", "no", "on", "true", "null", "~", "010", "-007", "1:30", "1_000", "0x1F", "1e400",
        ".inf", "-.inf", ".nan", "9" * 30, "9" * 5000, "1e-5", "-1", "0", "3", "2.5", "''", "'8'",
        "[]", "{}", "[1, 2]", "{a: 1, a: 2}", "*x", "&x [*x]", "!!int '3'", "!x y", "a: b: c",
        "{", "]", "'", '"\\0"', "[/b]", "../../x", "/etc/passwd", "2026-01-31", "<<", "é", "\u2028",
    ]
)  # fmt: skip


def require_sound(config: LifecycleConfig) -> None:
    """Check that a config that was accepted means the same to every process."""
    plain = config.model_dump(mode="json")
    assert finite(plain)
    again = LifecycleConfig.model_validate(json.loads(json.dumps(plain, allow_nan=False)))
    assert again == config
    assert is_name(config.name)


# ------------------------------------------------------------------ presets and assignments


@st.composite
def spoiled_presets(draw: st.DrawFn) -> bytes:
    """The preset tiny, with one of its lines changed, doubled or broken."""
    lines = TINY.splitlines()
    place = draw(st.integers(0, len(lines) - 1))
    how = draw(st.sampled_from(["value", "double", "drop", "indent", "cut", "bytes", "add"]))
    if how == "value":
        lines[place] = re.sub(r": [^{}\[\],]+", f": {draw(scalars)}", lines[place], count=1)
    elif how == "double":
        lines.insert(place, lines[place])
    elif how == "drop":
        del lines[place]
    elif how == "indent":
        lines[place] = draw(st.sampled_from([" ", "   ", "\t", "- "])) + lines[place]
    elif how == "cut":
        lines = lines[:place]
    elif how == "add":
        lines.insert(place, draw(st.sampled_from(["base: x", "x: 1", "1: 2", "---", "...", "%"])))
    content = "\n".join(lines).encode()
    if how == "bytes":
        at = draw(st.integers(0, len(content)))
        content = content[:at] + draw(st.binary(min_size=1, max_size=4)) + content[at:]
    return content


@laws
@given(content=spoiled_presets())
def test_a_spoiled_preset_is_sound_or_told_with_its_file(folder, content):
    path = folder / "mine.yaml"
    path.write_bytes(content)
    config = told(lambda: load_config(str(path)), "mine.yaml")
    if config is not None:
        require_sound(config)


def fields_of(value: Any, prefix: str = "") -> list[str]:
    if not isinstance(value, dict):
        return [prefix]
    return [f for k, v in value.items() for f in fields_of(v, f"{prefix}.{k}" if prefix else k)]


FIELDS = fields_of(load_config("tiny").model_dump(mode="json"))


@laws
@given(
    field=st.sampled_from([*FIELDS, "sft", "nosuch", "sft.nosuch", "", ".", "sft..seed", "a b"]),
    sign=st.sampled_from(["=", "=", "=", "= ", " =", "", "=="]),
    value=scalars | st.sampled_from(["", " ", "1.0", "tiny", "x" * 400]),
)
def test_an_assignment_is_what_it_says_or_told_with_its_key(field, sign, value):
    def overrides() -> LifecycleConfig:
        return load_config("tiny", parse_assignments([f"{field}{sign}{value}"]))

    config = told(overrides, field.split(".")[0].strip())
    if config is None:
        return
    require_sound(config)
    expected = parse_yaml(f"{sign}{value}".strip().removeprefix("="), "here")
    found: Any = config.model_dump(mode="json")
    for key in field.strip().split("."):
        found = found[key]
    if not isinstance(expected, dict) and "path" not in field:
        assert found == (float(expected) if isinstance(found, float) else expected)
        assert isinstance(found, bool) == isinstance(expected, bool)


# ------------------------------------------------------------------ names


@laws
@given(
    text=st.text(max_size=6)
    | st.text(alphabet="a./\\\0 -_~:\n", max_size=8)
    | st.sampled_from(["", ".", "..", "../x", "/x", "a" * 101, "CON", "~root"])
)
def test_a_name_is_one_part_of_a_path_and_a_file_is_below_its_folder(text):
    root = Path("/store")
    name = told(lambda: require_name("lifecycle", text), "lifecycle: ")
    if name is not None:
        assert (root / name).resolve().parent == root
    try:
        file = checked_file(text)
    except ValueError:
        return
    assert root in (root / file).resolve().parents


@laws
@given(stage=st.text(max_size=5), key=st.text(alphabet="k/.\0", max_size=5))
def test_the_store_looks_nowhere_but_in_itself(folder, stage, key):
    try:
        assert folder in Store(folder).stage_dir(stage, key).resolve().parents
    except ConfigError as error:
        assert "expected letters, digits" in str(error)
        assert not is_name(stage) or not is_name(key)


def test_errors_that_are_told_are_of_the_right_family():
    with pytest.raises(ConfigError):
        require_name("stage", "..")
    with pytest.raises(IntegrityError):
        require_name("stage", "..", error=IntegrityError)
