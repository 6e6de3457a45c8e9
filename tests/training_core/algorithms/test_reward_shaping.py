"""Changes to rewards, on numbers worked out by hand. Shapes: B responses, R rewards."""

import math

import pytest
import torch

from training_core.algorithms.reward_shaping import (
    gdpo,
    overlong_penalties,
    pooled_moments,
    stop_properly,
)


def test_the_overlong_penalty_grows_over_the_last_tokens():
    lengths = torch.tensor([1.0, 16.0, 17.0, 18.0, 20.0])
    found = overlong_penalties(lengths, max_tokens=20, buffer_tokens=4, penalty=2.0)
    # excess over 16: 0, 0, 1, 2, 4 of 4
    torch.testing.assert_close(found, torch.tensor([0.0, 0.0, 0.5, 1.0, 2.0]))


def test_a_cut_response_loses_its_reward_and_a_negative_one_is_not_raised():
    rewards = torch.tensor([4.0, 4.0, -4.0, -4.0])
    is_finished = torch.tensor([True, False, True, False])
    found = stop_properly(rewards, is_finished, factor=0.25)
    torch.testing.assert_close(found, torch.tensor([4.0, 1.0, -4.0, -4.0]))
    torch.testing.assert_close(stop_properly(rewards, is_finished, factor=1.0), rewards)


def test_moments_added_piece_by_piece_are_those_of_all_values():
    values = torch.tensor([1.0, 4.0, -2.0, 8.0, 8.0, 5.0], dtype=torch.float64)
    moments = (0.0, 0.0, 0.0)
    for piece in values.split([1, 3, 2]):
        moments = pooled_moments(moments, piece)
    # mean 24 / 6 = 4; squares 9 + 0 + 36 + 16 + 16 + 1 = 78
    assert moments == pytest.approx((6.0, 4.0, 78.0))


REWARDS = torch.tensor([[0.0, 1.0, 1.0, 0.0], [30.0, 10.0, 10.0, 10.0]], dtype=torch.float64)
GROUPS = torch.tensor([0, 0, 1, 1])


def test_gdpo_normalises_each_reward_in_its_group_and_the_sum_over_the_batch():
    found = gdpo(REWARDS, torch.tensor([1.0, 3.0], dtype=torch.float64), GROUPS, std_epsilon=1e-9)
    # in groups of two, a difference gives -+1/sqrt(2), equal rewards give 0
    #   first reward: -h, h, h, -h;  second: h, -h, 0, 0   (h = 1/sqrt(2))
    # x = -h+3h, h-3h, h, -h = 2h, -2h, h, -h; mean 0; std sqrt((4+4+1+1) h^2 / 3) = sqrt(5/3)
    h, std = 1 / math.sqrt(2), math.sqrt(5 / 3)
    expected = torch.tensor([2 * h, -2 * h, h, -h], dtype=torch.float64) / std
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


def test_gdpo_does_not_see_the_scale_of_one_reward():
    weights = torch.tensor([1.0, 1.0], dtype=torch.float64)
    scaled = REWARDS * torch.tensor([[1000.0], [1.0]], dtype=torch.float64)
    one, other = (gdpo(r, weights, GROUPS, std_epsilon=1e-9) for r in (REWARDS, scaled))
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
