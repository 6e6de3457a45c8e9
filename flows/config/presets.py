"""Presets: YAML files with inheritance, merged with overrides into a `LifecycleConfig`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from flows.config.lifecycle_config import LifecycleConfig
from stages.configs.explanation import explain
from stages.runtime.sources import resolve_paths
from training_core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
PRESETS = ROOT / "deployments" / "presets"


def load_config(preset: str, overrides: Mapping[str, Any] | None = None) -> LifecycleConfig:
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
        raise ConfigError(
            f"preset '{preset}' with its overrides is not valid:\n  "
            + explain(error, LifecycleConfig)
        ) from error
    return resolve_paths(config, ROOT / config.data_root)


def preset_names() -> list[str]:
    """Names of all presets that can be run."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml") if not path.stem.startswith("_"))


def deep_merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
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


def parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """Turn `ppo.kl_coef=0.05` into nested overrides; the value is YAML.

    Raises:
        ConfigError: for one without `=`.
    """
    overrides: dict[str, Any] = {}
    for assignment in assignments:
        path, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(f"expected <dotted.key>=<value>, found '{assignment}'")
        nested: Any = yaml.safe_load(value)
        for key in reversed(path.strip().split(".")):
            nested = {key: nested}
        overrides = deep_merge(overrides, nested)
    return overrides


def _read(preset: str) -> dict[str, Any]:
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
