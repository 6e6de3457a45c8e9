"""What the documentation shows can be used as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from flows.config.presets import load_config

METHODS = Path(__file__).resolve().parents[2] / "docs" / "methods"
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in sorted(METHODS.glob("*.md"))
    for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_every_example_of_a_method_is_a_valid_piece_of_a_preset(block):
    load_config("tiny", yaml.safe_load(block))


def test_every_page_of_a_method_has_an_example_and_is_linked():
    index = (METHODS / "README.md").read_text()
    for page in METHODS.glob("*.md"):
        assert page.name == "README.md" or ("```yaml" in page.read_text() and page.name in index)
