"""One thread, because the models are too small for more, and a folder for files."""

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("bad")
