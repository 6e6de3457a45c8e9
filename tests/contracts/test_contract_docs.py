"""What the documentation shows can be used as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
import yaml

from flows.config.presets import load_config
from stages.configs.reward_config import RewardConfig

DOCS = Path(__file__).resolve().parents[2] / "docs"
METHODS = DOCS / "methods"
REWARDS = DOCS / "rewards.md"
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in (*sorted(METHODS.glob("*.md")), REWARDS)
    for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_every_example_of_a_page_is_a_valid_piece_of_a_preset(block):
    load_config("tiny", yaml.safe_load(block))


def test_every_page_of_a_method_has_an_example_and_is_linked():
    index = (METHODS / "README.md").read_text()
    for page in METHODS.glob("*.md"):
        assert page.name == "README.md" or ("```yaml" in page.read_text() and page.name in index)


def test_the_page_of_rewards_has_a_row_and_an_example_of_each():
    text = REWARDS.read_text()
    examples = " ".join(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL))
    for block in get_args(get_args(RewardConfig)[0]):
        fields = {name: field.default for name, field in block.model_fields.items()}
        name = fields.pop("name")
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}`"))
        assert set(re.findall(r"`(\w+)`", row)) == {name, *fields}
        assert re.search(rf"reward: {{name: {name}\b", examples)
