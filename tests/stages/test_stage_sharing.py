"""When the two responses of a pair share their prompt, and what counts as rounding."""

from __future__ import annotations

import pytest
import torch

from stages.batches.micro_batches import rounding, sharing_pays
from training_core.models.offloading import FrozenWeights
from training_core.types import Batch, Example, Pair

CPU = torch.device("cpu")
PROMPT = tuple(range(3, 23)) * 10


def pairs(tokens):
    """Pairs whose responses have so many tokens each."""
    responses = [(5,) * tokens, (6,) * tokens]
    mask = (0,) * len(PROMPT) + (1,) * tokens
    return [Pair(*(Example(PROMPT + r, mask) for r in responses))]


def apart_by(gap):
    """A measure that differs by `gap` where the prompt is shared."""

    def measure(_: object, batch: Batch) -> torch.Tensor:
        return torch.full((batch.num_sequences,), 0.0 if batch.layout is None else gap)

    return measure


@pytest.mark.parametrize(
    ("tokens", "gap", "is_sum", "shares"),
    [
        (10, 0.9e-3, True, True),
        (10, 1.5e-3, True, False),
        (400, 1.5e-3, True, True),  # 4 times as much as for 100 tokens
        (400, 5e-3, True, False),
        (400, 1.5e-3, False, False),  # a score is no sum
    ],
)
def test_the_rounding_of_a_sum_grows_with_its_tokens(make_policy, tokens, gap, is_sum, shares):
    found = sharing_pays(
        FrozenWeights(make_policy(), CPU), pairs(tokens), 0, apart_by(gap), is_sum=is_sum
    )
    assert found is shares


def test_half_precision_rounds_more_than_single_and_single_more_than_double():
    (pair,) = pairs(200)
    found = [rounding(d, [pair.chosen]) for d in (torch.float64, torch.float32, torch.bfloat16)]
    assert found == [pytest.approx(2e-6), pytest.approx(2e-3), pytest.approx(1.0)]
