"""Ratchet from Python: what a flow of one's own needs; see docs/own_flows.md.

Import this module before Ratchet's packages. A project may have folders of its own that are called
`flows` and `tasks`; the packages of that name then have the modules of both.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import extend_path

ROOT = Path(__file__).resolve().parent
PACKAGES = ("flows", "tasks", "stages", "training_core")


def _join_packages() -> None:
    """Let each package find Ratchet's modules, and those of a folder of its name elsewhere."""
    for name in PACKAGES:
        folder = str(ROOT / name)
        if (package := sys.modules.get(name)) is not None:
            if folder not in package.__path__:
                package.__path__.append(folder)
            continue
        spec = spec_from_file_location(
            name, f"{folder}/__init__.py", submodule_search_locations=[folder]
        )
        assert spec is not None and spec.loader is not None  # the file is there
        sys.modules[name] = package = module_from_spec(spec)
        spec.loader.exec_module(package)
        package.__path__ = extend_path(package.__path__, name)


_join_packages()

from flows.config.lifecycle_config import LifecycleConfig  # noqa: E402 - joined first
from flows.config.presets import load_config  # noqa: E402
from flows.recipe.chain import Chain  # noqa: E402
from flows.recipe.lifecycle_report import LifecycleSummary, publish_report  # noqa: E402
from flows.recipe.opening import open_recipe  # noqa: E402
from flows.recipe.outline import StepRunner  # noqa: E402

__all__ = [
    "Chain",
    "LifecycleConfig",
    "LifecycleSummary",
    "StepRunner",
    "load_config",
    "open_recipe",
    "publish_report",
]
