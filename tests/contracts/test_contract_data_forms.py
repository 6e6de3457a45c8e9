"""Every row that docs/data.md shows is read by the lines of a preset below it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from flows.config.presets import load_config
from stages.data_check import datasets_of
from stages.datasets import read

PAGE = Path(__file__).resolve().parents[2] / "docs" / "data.md"
EXAMPLES = re.findall(r"```json\n(.*?)```\n```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize(("rows", "block"), EXAMPLES, ids=range(1, len(EXAMPLES) + 1))
def test_the_rows_of_an_example_are_read_by_its_config(tmp_path, rows, block):
    overrides = yaml.safe_load(block)
    config = load_config("tiny", overrides)
    for step, fields in overrides.items():
        (dataset,) = (
            one for one in datasets_of(step, config.step_config(step)) if one.field == "data"
        )
        path = tmp_path / fields["data"]["path"]
        path.write_text(rows)
        found = read(dataset.kind, dataset.data.model_copy(update={"path": str(path)}))
        assert found.bad == []
        assert found.rows
        assert len(found.forms) == 1


def test_every_form_has_an_example():
    section = PAGE.read_text().partition("## Data as it is found")[2].partition("\n## ")[0]
    forms = section.split("\n### ")[1:]
    assert len(forms) == 7
    assert all("```json" in form and "```yaml" in form for form in forms)
