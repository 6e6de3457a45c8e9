"""The doors to `running` as fixtures, for every folder whose tests run stages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stages.runtime.manifest import Manifest
from stages.runtime.store import Store
from tests.stages import running


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture(scope="session")
def write_request() -> Callable[..., Path]:
    """Write what a flow hands to a stage's process: `write_request(store, stage, config)`."""
    return running.write_request


@pytest.fixture(scope="session")
def finish() -> Callable[..., Manifest]:
    """Run a stage to its end in this process and return its manifest."""
    return running.finish


@pytest.fixture(scope="session")
def run_here() -> Callable[[Path], int]:
    """Run `python -m stages` without the process, and give back what it takes for itself."""
    return running.run_here
