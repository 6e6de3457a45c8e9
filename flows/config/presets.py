"""Presets: YAML files with inheritance, merged with overrides into a `LifecycleConfig`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from flows.config.lifecycle_config import LifecycleConfig, models_in
from stages.runtime.sources import resolve_paths
from training_core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
PRESETS = ROOT / "deployments" / "presets"
UNION_ERRORS = ("union_tag_invalid", "union_tag_not_found", "model_attributes_type")


def load_config(preset: str, overrides: Mapping[str, object] | None = None) -> LifecycleConfig:
    """Load a preset, apply overrides deeply, validate, and root its paths.

    Args:
        preset: a file name below deployments/presets without `.yaml`.
        overrides: a partial config; missing keys change nothing. Neither does a None: it leaves
            the preset's value and cannot unset it, since a form sends None for what is left empty.

    Raises:
        ConfigError: naming every wrong key with the nearest right one, and every wrong value.
    """
    changes = dict(overrides or {})
    shared = os.environ.get("RATCHET_SHARED")
    elsewhere = {"data_root": str(Path(shared, "data"))} if shared else {}
    merged = deep_merge(deep_merge(_read(preset), elsewhere), changes)
    try:
        config = LifecycleConfig.model_validate({"name": preset, **merged})
    except ValidationError as error:
        raise ConfigError(_explain(error, preset)) from error
    return resolve_paths(config, ROOT / config.data_root)


def preset_names() -> list[str]:
    """Names of all presets that can be run."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml") if not path.stem.startswith("_"))


def deep_merge(base: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    """Return `base` with `changes`, merged key by key all levels down; a None changes nothing.

    A block with another `name` (another member of a union) replaces the old one whole.
    """
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        if value is None:
            continue
        if (
            isinstance(value, Mapping)
            and isinstance(old, Mapping)
            and value.get("name") in (None, old.get("name"))
        ):
            merged[key] = deep_merge(old, value)
        elif isinstance(value, Mapping):
            merged[key] = deep_merge({}, value)
        else:
            merged[key] = value
    return merged


def parse_assignments(assignments: list[str]) -> dict[str, object]:
    """Turn `ppo.kl_coef=0.05` into nested overrides; the value is YAML.

    Raises:
        ConfigError: for one without `=`.
    """
    overrides: dict[str, object] = {}
    for assignment in assignments:
        path, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(f"expected <dotted.key>=<value>, found '{assignment}'")
        *outer, last = path.strip().split(".")
        nested: dict[str, object] = {last: yaml.safe_load(value)}
        for key in reversed(outer):
            nested = {key: nested}
        overrides = deep_merge(overrides, nested)
    return overrides


def _read(preset: str) -> dict[str, object]:
    path = PRESETS / f"{preset}.yaml"
    if not path.exists():
        near = get_close_matches(preset, preset_names(), n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(preset_names())}"
        raise ConfigError(f"there is no preset '{preset}' in {PRESETS}; {hint}")
    try:
        content = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    base = content.pop("base", None)
    return deep_merge(_read(base), content) if base else content


def _explain(error: ValidationError, preset: str) -> str:
    lines = [_explain_one(e) for e in error.errors()]
    return f"preset '{preset}' with its overrides is not valid:\n  " + "\n  ".join(lines)


def _explain_one(error: ErrorDetails) -> str:
    path = ".".join(str(part) for part in error["loc"])
    if not path:  # a rule about several keys, which it names itself
        return error["msg"].removeprefix("Value error, ")
    if error["type"] in UNION_ERRORS and (names := _names_at(error["loc"])):
        return f"{path}: {_explain_union(error, names)}"
    if error["type"] != "extra_forbidden":
        return f"{path}: {error['msg']} (found {error['input']!r:.80})"
    members = _models_at(error["loc"][:-1])
    known = list(members[0].model_fields) if len(members) == 1 else []
    near = get_close_matches(str(error["loc"][-1]), known, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"known are: {', '.join(known)}"
    return f"{path}: unknown key; {hint}"


def _explain_union(error: ErrorDetails, names: Sequence[str]) -> str:
    """Say which `name` is wrong or missing, with the nearest one that there is."""
    there_are = f"there are: {', '.join(names)}"
    if error["type"] == "union_tag_not_found":
        return f"`name` is missing; {there_are}"
    if error["type"] == "model_attributes_type":
        return f"expected a block with `name`, found {error['input']!r:.80}; {there_are}"
    tag = error.get("ctx", {})["tag"]
    near = get_close_matches(str(tag), names, n=1)
    return f"unknown name '{tag}'; " + (f"did you mean '{near[0]}'? " if near else "") + there_are


def _names_at(path: tuple[int | str, ...]) -> list[str]:
    """Return the names of the members of the union at `path`; none if it is no union."""
    members = _models_at(path)
    return [m.model_fields["name"].default for m in members] if len(members) > 1 else []


def _models_at(path: tuple[int | str, ...]) -> list[type[BaseModel]]:
    """Return the block at `path` of a preset, or the members of the union there."""
    members: list[type[BaseModel]] = [LifecycleConfig]
    for part in path:
        if len(members) > 1:  # pydantic names the union's member in the path
            members = [m for m in members if m.model_fields["name"].default == part]
        elif members and part in members[0].model_fields:
            members = models_in(members[0].model_fields[str(part)].annotation)
    return members
