"""The examples of `docs/python.md` run as they stand there, one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_every_example_runs_and_its_assertions_hold():
    names: dict[str, Any] = {}
    with torch.random.fork_rng(devices=[]):
        for example in EXAMPLES:
            assert "assert " in example
            exec(compile(example, str(PAGE), "exec"), names)
    assert len(EXAMPLES) == 3
    assert len(names["losses"]) == 32  # 256 rows, batches of 32, 4 epochs
