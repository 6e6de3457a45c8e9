"""Real stages on real data: one store, and one thread, since the machine may be busy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stages.runtime.store import Store

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For the rows and the bases that recipes write."""
    return tmp_path_factory.mktemp("learning")


@pytest.fixture(scope="session")
def store(folder: Path) -> Store:
    return Store(folder / "store")
