"""Presets: YAML files with inheritance, merged with overrides into a `LifecycleConfig`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from flows.config.lifecycle_config import LifecycleConfig
from stages.configs.explanation import explain
from stages.runtime.sources import resolve_paths
from stages.strict_yaml import parse_yaml, read_yaml
from training_core.errors import ConfigError
from training_core.names import is_name

ROOT = Path(__file__).resolve().parents[2]
PRESETS = ROOT / "deployments" / "presets"
SUFFIX = ".yaml"


def load_config(preset: str, overrides: Mapping[str, object] | None = None) -> LifecycleConfig:
    """Load a preset, apply overrides deeply, validate, and root its paths.

    Args:
        preset: a file name below deployments/presets without `.yaml`, or the path of a file that
            ends in `.yaml` and may be anywhere.
        overrides: a partial config. Missing keys change nothing; a None sets its field to None.

    Raises:
        ConfigError: naming every wrong key with the nearest right one, and every wrong value.
    """
    changes, file = dict(overrides or {}), file_of(preset)
    shared = os.environ.get("RATCHET_SHARED")
    is_shipped = home_of(file) == ROOT
    elsewhere = {"data_root": str(ROOT / shared / "data")} if shared and is_shipped else {}
    merged = deep_merge(deep_merge(_read(file), elsewhere), changes)
    try:
        config = LifecycleConfig.model_validate({"name": file.stem, **merged})
    except ValidationError as error:
        raise ConfigError(
            f"preset '{preset}' with its overrides is not valid:\n  "
            + explain(error, LifecycleConfig)
        ) from error
    return resolve_paths(config, home_of(file) / config.data_root)


def file_of(preset: str, folder: Path | None = None) -> Path:
    """Return the file of a preset.

    Args:
        preset: a name, i.e. a file below deployments/presets, or a path that ends in `.yaml`.
        folder: relative paths start here; None: at the current folder.

    Raises:
        ConfigError: if there is no preset of that name; the message has the nearest name.
    """
    if preset.endswith(SUFFIX):
        return (folder or Path()) / preset
    if not is_name(preset.removeprefix("_")):
        raise ConfigError(
            f"expected the name of a preset in {PRESETS} or the path of a file that ends in "
            f"{SUFFIX}, found {preset!r:.120}; there are: {', '.join(preset_names())}"
        )
    path = PRESETS / f"{preset}{SUFFIX}"
    if not path.exists():
        near = get_close_matches(preset, preset_names(), n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(preset_names())}"
        raise ConfigError(f"there is no preset '{preset}' in {PRESETS}; {hint}")
    return path


def home_of(file: Path) -> Path:
    """Return where a relative `data_root` starts: the preset's folder, for ours the repository."""
    folder = file.resolve().parent
    return ROOT if folder.is_relative_to(PRESETS) else folder


def preset_names() -> list[str]:
    """Names of all presets that can be run."""
    return sorted(path.stem for path in PRESETS.glob(f"*{SUFFIX}") if not path.stem.startswith("_"))


def deep_merge(base: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    """Return `base` with `changes`, merged key by key all levels down.

    A block with another `name` (another member of a union) replaces the old one whole.
    """
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
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


def with_changes(overrides: Mapping[str, object], changes: Sequence[str]) -> dict[str, object]:
    """Return overrides with the lines `<dotted.key>=<value>` of a form merged into them.

    Raises:
        ConfigError: as `parse_assignments`.
    """
    return deep_merge(overrides, parse_assignments(changes))


def parse_assignments(assignments: Sequence[str]) -> dict[str, object]:
    """Turn `ppo.kl_coef=0.05` into nested overrides; the value is YAML.

    Raises:
        ConfigError: for one without `=`, without a value, or whose value is not YAML.
    """
    overrides: dict[str, object] = {}
    for assignment in assignments:
        path, equals, value = assignment.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise ConfigError(
                f"expected <dotted.key>=<value>, found '{assignment}'; e.g. ppo.kl_coef=0.1"
            )
        if not value.strip():
            raise ConfigError(
                f"expected a value behind '{assignment}', found none (is a variable of the shell "
                "empty?); leave the assignment out to keep the preset's value"
            )
        nested: object = parse_yaml(value, f"the value of {assignment!r:.120}")
        for key in reversed(keys):
            nested = {key: nested}
        overrides = deep_merge(overrides, cast("dict[str, object]", nested))
    return overrides


def _read(path: Path, above: tuple[Path, ...] = ()) -> dict[str, object]:
    """Read a preset file and what it is based on; `above` are the files that are based on it."""
    if path.resolve() in above:
        chain = " -> ".join(p.name for p in (*above, path))
        raise ConfigError(
            f"{above[-1]}: the presets are based on each other: {chain}; remove one `base`"
        )
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path}: expected the blocks of a lifecycle, found {content!r:.80}; "
            "write one block per step, e.g. as in deployments/presets/tiny.yaml"
        )
    if isinstance(root := content.get("data_root"), str):
        content["data_root"] = str(home_of(path) / root)
    base = content.pop("base", None)
    if base is None:
        return content
    if not isinstance(base, str):
        raise ConfigError(f"{path}: expected a preset as `base`, found {base!r:.80}; name it")
    try:
        below = file_of(base, path.parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: `base`: {error}") from error
    return deep_merge(_read(below, (*above, path.resolve())), content)
