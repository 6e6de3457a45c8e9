"""The tables of `docs/migration` name keys that exist, with values that they take."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from typer.main import get_command

from flows.cli.main import app
from flows.config.lifecycle_config import LifecycleConfig
from stages.configs.explanation import models_in
from stages.strict_yaml import parse_yaml

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "migration"
PAGES = sorted(FOLDER.glob("*.md"))
CODE = re.compile(r"`([^`]+)`")
COMMANDS = get_command(app).commands
OLD_NAMES = "\n## Names before "
"""Heading of a table whose second column has names of the tables above."""


def rows(text: str) -> Iterator[tuple[list[str], str, str]]:
    """Names of the other library, cell of the preset, and remark of every row of a table."""
    for line in text.partition(OLD_NAMES)[0].splitlines():
        if line.startswith("| `"):
            names, preset, remark = (cell.strip() for cell in line.strip("|").split(" | "))
            yield CODE.findall(names), preset, remark.strip("| ")


def fields_at(key: str) -> list[FieldInfo]:
    """The fields at a dotted key: several, if blocks of a union have the last part."""
    blocks, found = [LifecycleConfig], []
    for part in key.split("."):
        found = [block.model_fields[part] for block in blocks if part in block.model_fields]
        blocks = [block for field in found for block in models_in(field.annotation)]
    return found


def takes(field: FieldInfo, value: Any) -> bool:
    try:
        TypeAdapter(field.annotation).validate_python(value)
    except ValidationError:
        return False
    return True


def wrong_parts(preset: str) -> list[str]:
    """What a cell names and a preset does not have."""
    found = []
    for part in CODE.findall(preset):
        key, colon, value = part.partition(": ")
        if key.startswith("ratchet "):
            is_right = key.split()[1] in COMMANDS
        elif colon:
            is_right = any(takes(field, parse_yaml(value, key)) for field in fields_at(key))
        else:
            is_right = bool(fields_at(key))
        found += [] if is_right else [part]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_key_exists_and_takes_its_value_and_a_missing_one_has_its_reason(page):
    for names, preset, remark in rows(page.read_text()):
        assert names
        assert wrong_parts(preset) == []
        assert CODE.search(preset) or (preset == "none" and remark), names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_table_has_a_name_twice(page):
    for table in page.read_text().partition(OLD_NAMES)[0].split("\n## "):
        counted = Counter(name for names, *_ in rows(table) for name in names)
        assert [name for name, times in counted.items() if times > 1] == []


def test_every_flag_of_openrlhf_is_of_a_command():
    listed = list(rows((FOLDER / "openrlhf.md").read_text()))
    flags = [flag for names, *_ in listed for flag in names]
    assert len(flags) > 240
    assert all(re.fullmatch(r"([a-z_]+ )?--[a-z\d_.]+", flag) for flag in flags)


def test_the_old_names_of_openrlhf_are_names_of_flags_above():
    text = (FOLDER / "openrlhf.md").read_text()
    above = {flag for names, *_ in rows(text) for flag in names}
    old = re.findall(r"^\| `(--\w+)` \| (.*) \|$", text.partition(OLD_NAMES)[2], re.MULTILINE)
    assert len(old) > 40
    assert not above & {name for name, _ in old}
    assert {name for _, since in old for name in CODE.findall(since)} <= above


def test_a_wrong_key_and_a_wrong_value_would_be_seen():
    assert wrong_parts("`dpo.loss.beta`, `dpo.loss.betta`") == ["dpo.loss.betta"]
    assert wrong_parts("`ppo.kl_in: loss`, `ppo.kl_in: los`") == ["ppo.kl_in: los"]
    assert wrong_parts("`ppo.advantage: {name: grpo}`, `ppo.advantage: {name: gro}`") == [
        "ppo.advantage: {name: gro}"
    ]
    assert wrong_parts("`ratchet merge`, `ratchet mrge`") == ["ratchet mrge"]


def fields_of_trl(module: str, name: str) -> set[str]:
    """Fields that a class of TRL or transformers declares itself; neither is imported."""
    package = find_spec(module.partition(".")[0])
    assert package is not None
    assert package.origin is not None
    file = Path(package.origin).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
    (block,) = (
        node
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    return {ast.unparse(node.target) for node in block.body if isinstance(node, ast.AnnAssign)}


def names_in(heading: str) -> set[str]:
    text = (FOLDER / "trl.md").read_text()
    (section,) = (part for part in text.split("\n## ") if part.startswith(heading))
    return {name for names, *_ in rows(section) for name in names}


@pytest.mark.parametrize("kind", ["sft", "reward", "dpo", "kto", "grpo"])
def test_every_field_of_a_config_of_trl_has_a_row_and_no_other(kind):
    name = {"reward": "RewardConfig"}.get(kind, f"{kind.upper()}Config")
    fields = fields_of_trl(f"trl.trainer.{kind}_config", name)
    assert len(fields) > 10
    assert fields <= names_in(name) | names_in("All trainers")
    assert names_in(name) <= fields


def test_every_field_of_all_trainers_is_one_of_trl_or_transformers():
    known = fields_of_trl("transformers.training_args", "TrainingArguments")
    known |= fields_of_trl("trl.trainer.model_config", "ModelConfig")
    known |= fields_of_trl("trl.scripts.utils", "ScriptArguments")
    for kind, name in (("sft", "SFTConfig"), ("dpo", "DPOConfig"), ("reward", "RewardConfig")):
        known |= fields_of_trl(f"trl.trainer.{kind}_config", name)
    assert names_in("All trainers") <= known
