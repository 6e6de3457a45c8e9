"""`docs/sizing.md` has the tables that `python -m benchmarks sizing` prints."""

from __future__ import annotations

import pytest

from benchmarks import sizing
from flows.config.presets import ROOT
from tests.training_core.sizes.published_shapes import LLAMA_3_8B, LLAMA_3_70B
from training_core.sizes.decoder_config import decoder_of


@pytest.mark.parametrize("cases", [sizing.TRAINING, sizing.REINFORCEMENT])
def test_the_page_of_hardware_has_the_table_of_its_script(cases):
    page = (ROOT / "docs" / "sizing.md").read_text()
    assert "\n".join(sizing.table(cases, 79.0)) in page


def test_the_script_has_the_shapes_of_the_models_that_it_names():
    for name, published in (("Llama 3 8B", LLAMA_3_8B), ("Llama 3 70B", LLAMA_3_70B)):
        assert sizing.MODELS[name] == decoder_of(published, name)
