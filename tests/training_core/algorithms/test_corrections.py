"""Corrections for the gap between sampler and trainer, on numbers worked out by hand."""

import math

import pytest
import torch

from training_core.algorithms.corrections import CORRECTIONS

RATIOS = torch.tensor([[0.25, 4.0, 0.5], [2.0, 8.0, 99.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1]]).bool()
"""Products of the responses: 0.5, 16 and 1; geometric means 0.794, 4 and 1."""


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("tis_token", {"max_ratio": 2.0}, [[0.25, 2, 0.5], [2, 2, 0], [1, 1, 1]]),
        ("tis_sequence", {"max_ratio": 3.0}, [[0.5, 0.5, 0.5], [3, 3, 0], [1, 1, 1]]),
        ("icepop", {"low": 0.4, "high": 5.0}, [[0, 4, 0.5], [2, 0, 0], [1, 1, 1]]),
        ("sequence_mask", {"max_ratio": 3.0}, [[0.5, 0.5, 0.5], [0, 0, 0], [1, 1, 1]]),
        ("geometric_mask", {"low": 0.75, "high": 1.3}, [[1, 1, 1], [0, 0, 0], [1, 1, 1]]),
        ("geometric_mask", {"low": 0.8, "high": 1.3}, [[0, 0, 0], [0, 0, 0], [1, 1, 1]]),
    ],
)
def test_the_weights_of_three_responses(name, settings, expected):
    found = CORRECTIONS[name](RATIOS.log(), MASK, **settings)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


SETTINGS = {
    "tis_token": {"max_ratio": 2.0},
    "tis_sequence": {"max_ratio": 3.0},
    "icepop": {"low": 0.5, "high": 5.0},
    "sequence_mask": {"max_ratio": 3.0},
    "geometric_mask": {"low": 0.999, "high": 1.001},
}


@pytest.mark.parametrize("name", list(CORRECTIONS))
def test_equal_policies_need_no_correction_and_padding_gets_no_weight(name):
    mask = torch.tensor([[False, True, True, False]])
    gap = torch.tensor([[float("nan"), 0.0, 0.0, float("nan")]])
    found = CORRECTIONS[name](gap, mask, **SETTINGS[name])
    torch.testing.assert_close(found, mask.float())


@pytest.mark.parametrize("name", list(CORRECTIONS))
def test_a_weight_is_finite_however_far_the_policies_are_apart(name):
    gap = torch.tensor([[1000.0, 1000.0], [-1000.0, -1000.0]])
    found = CORRECTIONS[name](gap, torch.ones(2, 2, dtype=torch.bool), **SETTINGS[name])
    assert torch.isfinite(found).all()
    assert float(found.max()) <= math.ceil(SETTINGS[name].get("max_ratio", 5.0))
