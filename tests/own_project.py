"""A project outside of the repository, as docs/lifecycles.md describes it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from flows.config.presets import ROOT
from training_core.data import cafe

PAGE = (ROOT / "docs" / "lifecycles.md").read_text()
PRESET = """
name: mine
given: {sft: %s}
dpo:
  data: {name: files, path: pairs.jsonl}
  training: {epochs: 1, batch_size: 16, max_tokens: 96, optimizer: {learning_rate: 1.0e-4}}
evaluation:
  prompts: {name: cafe, split: heldout, size: 64, seed: 5}
  reward: {name: cafe}
  rollouts: {engine: transformers, max_response_tokens: 24, max_tokens: 96}
"""


def own_project(folder: Path, *, is_package: bool = True, start: str = "./model") -> None:
    """Write the flow of the page, a preset, pairs, and folders with the names of Ratchet's.

    Args:
        folder: exists.
        is_package: whether the project's `flows` has an `__init__.py`.
        start: the policy that the preset starts from.
    """
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (folder / "again.py").write_text(code)
    (folder / "mine.yaml").write_text(PRESET % start)
    pairs = cafe.rows("pairs", split="train", size=64, seed=11)
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    for name in ("flows", "tasks"):
        (folder / name).mkdir()
        if is_package:
            (folder / name / "__init__.py").touch()
    (folder / "flows" / "theirs.py").write_text('THEIRS = "a module of the project"\n')
