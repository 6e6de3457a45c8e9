"""Advantage estimators on numbers worked out by hand. Shapes: B sequences, T tokens."""

import math
from dataclasses import replace

import pytest
import torch

from tests.rounds import estimate
from training_core.algorithms.advantages import gae, returns_to_go
from training_core.algorithms.estimators import ADVANTAGES, RoundRewards

SETTINGS = {
    "gae": {"gamma": 1.0, "gae_lambda": 1.0},
    "reinforce_pp": {"gamma": 1.0},
    "grpo": {"std_epsilon": 1e-4},
    "gdpo": {"std_epsilon": 1e-4},
}
GROUPS = torch.tensor([0, 0, 0, 1, 1])
MASK = torch.tensor(
    [[0, 1, 1, 0], [0, 1, 0, 0], [0, 1, 1, 1], [0, 0, 1, 1], [0, 1, 1, 0]], dtype=torch.bool
)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def round_of(rewards, groups, mask, *, kl_coef=0.0, kl=None, **others):
    none = torch.zeros(mask.shape, dtype=torch.float64)
    others = {"parts": tensor(*rewards)[None], "part_weights": tensor(1.0)} | others
    return RoundRewards(
        tensor(*rewards), groups, none if kl is None else kl, kl_coef, mask, **others
    )


def advantages(name, rewards, **others):
    given = round_of(rewards, GROUPS, MASK, **others)
    return estimate(name, **SETTINGS.get(name, {}))(given)[0]


def spread(per_response):
    """The same advantage at every token of a response."""
    return tensor(*per_response)[:, None].expand(5, 4).masked_fill(~MASK, 0.0)


REWARDS = (1.0, 2.0, 6.0, 0.0, 4.0)
"""Means of the groups: 3 and 2. Squares from the mean: 4 + 1 + 9 = 14 and 4 + 4 = 8."""


def test_rloo_subtracts_the_mean_of_the_others():
    # 1 - (2+6)/2 = -3; 2 - (1+6)/2 = -1.5; 6 - (1+2)/2 = 4.5; 0 - 4; 4 - 0
    expected = spread((-3.0, -1.5, 4.5, -4.0, 4.0))
    torch.testing.assert_close(advantages("rloo", REWARDS), expected)


def test_dr_grpo_subtracts_the_mean_of_the_group():
    expected = spread((-2.0, -1.0, 3.0, -2.0, 2.0))
    torch.testing.assert_close(advantages("dr_grpo", REWARDS), expected)


def test_grpo_divides_by_the_deviation_of_the_group():
    first, second = math.sqrt(14 / 2) + 1e-4, math.sqrt(8 / 1) + 1e-4
    expected = spread((-2 / first, -1 / first, 3 / first, -2 / second, 2 / second))
    torch.testing.assert_close(advantages("grpo", REWARDS), expected)


def test_gdpo_divides_each_part_by_its_own_deviation_and_the_sum_by_that_of_the_round():
    parts = torch.stack([tensor(0.0, 0.0, 3.0, 0.0, 4.0), tensor(10.0, 20.0, 30.0, 5.0, 5.0)])
    weights = tensor(2.0, 1.0)
    found = advantages("gdpo", REWARDS, parts=parts, part_weights=weights)
    # first part:  (-1, -1, 2) / sqrt(3),  (-2, 2) / sqrt(8);  second: (-10, 0, 10) / 10,  (0, 0)
    a, b = 1 / math.sqrt(3), 1 / math.sqrt(2)
    x = tensor(-2 * a - 1, -2 * a, 4 * a + 1, -2 * b, 2 * b)
    # the sum is 0; the deviation is sqrt(sum of squares / 4)
    expected = spread(x / math.sqrt(float((x**2).sum()) / 4))
    torch.testing.assert_close(found, expected, rtol=5e-4, atol=0)


def test_gdpo_tells_apart_what_has_one_sum():
    # both responses of the first group have the sum 1, those of the second have 1 and 0
    rewards, groups = (1.0, 1.0, 1.0, 0.0), torch.tensor([0, 0, 1, 1])
    parts = torch.stack([tensor(1.0, 0.0, 1.0, 0.0), tensor(0.0, 1.0, 0.0, 0.0)])
    mask = torch.ones(4, 1, dtype=torch.bool)
    given = round_of(rewards, groups, mask, parts=parts, part_weights=tensor(3.0, 1.0))
    found = estimate("gdpo", **SETTINGS["gdpo"])(given)[0][:, 0]
    # h = 1/sqrt(2): 3h - h, -3h + h, 3h, -3h; deviation sqrt((4 + 4 + 9 + 9) h^2 / 3)
    scale = math.sqrt(13 / 3)
    expected = tensor(2.0, -2.0, 3.0, -3.0) / math.sqrt(2) / scale
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)
    assert float(estimate("grpo", **SETTINGS["grpo"])(given)[0][:2].abs().sum()) == 0


def test_remax_subtracts_the_greedy_reward():
    greedy = tensor(2.0, 2.0, 2.0, 0.5, 0.5)
    expected = spread((-1.0, 0.0, 4.0, -0.5, 3.5))
    torch.testing.assert_close(advantages("remax", REWARDS, greedy_rewards=greedy), expected)


def test_reinforce_pp_normalises_the_returns_over_all_tokens():
    # tokens per response 2, 1, 3, 2, 2: sum 2*1 + 2 + 3*6 + 0 + 2*4 = 30, mean 3
    # squares 2*4 + 1 + 3*9 + 2*9 + 2*1 = 56, variance 5.6
    scale = math.sqrt(5.6)
    expected = spread([(r - 3) / scale for r in REWARDS])
    torch.testing.assert_close(advantages("reinforce_pp", REWARDS), expected)


def test_reinforce_pp_baseline_normalises_what_is_left_after_the_group_mean():
    # centred -2, -1, 3, -2, 2: sum over tokens -4 - 1 + 9 - 4 + 4 = 4, mean 0.4
    # squares 2*5.76 + 1.96 + 3*6.76 + 2*5.76 + 2*2.56 = 50.4, variance 5.04
    scale = math.sqrt(5.04)
    expected = spread([(x - 0.4) / scale for x in (-2, -1, 3, -2, 2)])
    torch.testing.assert_close(advantages("reinforce_pp_baseline", REWARDS), expected)


def test_gae_normalises_too_and_its_returns_are_not_normalised():
    values = torch.full((5, 4), 1.0, dtype=torch.float64).masked_fill(~MASK, 0.0)
    given = round_of(REWARDS, GROUPS, MASK, values=values)
    found, returns = estimate("gae")(given)
    torch.testing.assert_close(returns, spread(REWARDS))  # gamma = lambda = 1
    # r - 1 at each token, which whitening turns into (r - 3) / sqrt(5.6), see reinforce_pp
    torch.testing.assert_close(found, spread([(r - 3) / math.sqrt(5.6) for r in REWARDS]))


def test_the_kl_of_the_tokens_still_to_come_lowers_each_advantage():
    kl = torch.full((5, 4), 0.5, dtype=torch.float64)
    found = advantages("dr_grpo", REWARDS, kl_coef=0.2, kl=kl)
    # 0.1 per token from here on: the last of 3 tokens pays 0.1, the first 0.3
    expected = torch.tensor([0.0, 3 - 0.3, 3 - 0.2, 3 - 0.1], dtype=torch.float64)
    torch.testing.assert_close(found[2], expected)


def test_reinforce_pp_discounts_a_reward_that_comes_late():
    rewards = round_of((8.0,), torch.tensor([0]), torch.ones(1, 3, dtype=torch.bool))
    _, returns = estimate("reinforce_pp", gamma=0.5)(rewards)
    torch.testing.assert_close(returns, torch.tensor([[2.0, 4.0, 8.0]], dtype=torch.float64))


def test_returns_to_go_skip_a_gap():
    mask = torch.tensor([[True, False, True]])
    found = returns_to_go(torch.tensor([[1.0, 9.0, 4.0]]), mask, gamma=0.5)
    torch.testing.assert_close(found, torch.tensor([[3.0, 0.0, 4.0]]))  # 1 + 0.5 * 4


def test_a_response_that_the_limit_cut_can_go_on_with_the_critics_value():
    rewards, values = torch.tensor([[0.0, 1.0]] * 2), torch.tensor([[0.5, 0.25]] * 2)
    mask = torch.ones(2, 2, dtype=torch.bool)
    ends = torch.tensor([0.0, 4.0])  # the first response ended, the second was cut
    found, returns = gae(rewards, values, mask, ends, gamma=0.5, gae_lambda=0.5)
    # ended: A_1 = 1 - 0.25 = 0.75;           A_0 = 0.5*0.25 - 0.5 + 0.25*0.75 = -0.1875
    # cut:   A_1 = 1 + 0.5*4 - 0.25 = 2.75;   A_0 = 0.5*0.25 - 0.5 + 0.25*2.75 = 0.3125
    torch.testing.assert_close(found, torch.tensor([[-0.1875, 0.75], [0.3125, 2.75]]))
    torch.testing.assert_close(returns, found + values)


GROUP_RELATIVE = [name for name, row in ADVANTAGES.items() if row.needs_group]


@pytest.mark.parametrize("name", GROUP_RELATIVE)
def test_a_constant_added_to_the_rewards_of_a_group_changes_nothing(name):
    shifted = [r + (5.0 if g == 0 else -3.0) for r, g in zip(REWARDS, GROUPS, strict=True)]
    torch.testing.assert_close(advantages(name, shifted), advantages(name, REWARDS))


@pytest.mark.parametrize("name", ["grpo", "gdpo", "reinforce_pp", "reinforce_pp_baseline", "gae"])
def test_the_scale_of_all_rewards_changes_nothing_where_advantages_are_normalised(name):
    others = {"values": torch.zeros(5, 4, dtype=torch.float64)} if name == "gae" else {}
    found = advantages(name, [1000 * r for r in REWARDS], **others)
    # GRPO's epsilon of 1e-4 beside a deviation of 2.6 leaves 4e-5
    torch.testing.assert_close(found, advantages(name, REWARDS, **others), rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", ["rloo", "dr_grpo", "remax"])
def test_the_scale_of_the_rewards_scales_the_others(name):
    def at(scale):
        greedy = {"greedy_rewards": tensor(1, 1, 1, 2, 2) * scale} if name == "remax" else {}
        return advantages(name, [scale * r for r in REWARDS], **greedy)

    torch.testing.assert_close(at(8.0), 8 * at(1.0))


@pytest.mark.parametrize("name", list(ADVANTAGES))
def test_the_order_of_the_responses_changes_nothing(name):
    generator = torch.Generator().manual_seed(0)
    kl = torch.rand(5, 4, generator=generator, dtype=torch.float64)
    values = torch.rand(5, 4, generator=generator, dtype=torch.float64)
    greedy = tensor(1, 1, 1, 2, 2)
    given = round_of(
        REWARDS, GROUPS, MASK, kl_coef=0.3, kl=kl, values=values, greedy_rewards=greedy
    )
    order = torch.tensor([4, 2, 0, 3, 1])
    turned = RoundRewards(
        given.rewards[order],
        given.groups[order],
        kl[order],
        0.3,
        MASK[order],
        values=values[order],
        greedy_rewards=greedy[order],
        parts=given.rewards[None, order],
        part_weights=tensor(1.0),
    )
    function = estimate(name, **SETTINGS.get(name, {}))
    for found, expected in zip(function(turned), function(given), strict=True):
        torch.testing.assert_close(found, expected[order])


@pytest.mark.parametrize("name", list(ADVANTAGES))
def test_padding_and_a_nan_in_it_change_nothing(name):
    greedy = tensor(1, 1, 1, 2, 2)
    values = torch.ones(5, 4, dtype=torch.float64)
    given = round_of(REWARDS, GROUPS, MASK, values=values, kl_coef=0.1, greedy_rewards=greedy)
    pad = torch.nn.functional.pad
    wide = replace(
        given,
        kl=pad(given.kl, (0, 3), value=float("nan")),
        loss_mask=pad(MASK, (0, 3)),
        values=pad(values, (0, 3), value=float("nan")),
    )
    function = estimate(name, **SETTINGS.get(name, {}))
    for found, expected in zip(function(wide), function(given), strict=True):
        torch.testing.assert_close(found[:, :4], expected)
        assert found[:, 4:].abs().sum() == 0


@pytest.mark.parametrize("name", GROUP_RELATIVE)
def test_equal_rewards_in_every_group_give_no_advantage(name):
    found = advantages(name, (7.0, 7.0, 7.0, 3.0, 3.0))
    torch.testing.assert_close(found, torch.zeros(5, 4, dtype=torch.float64))


@pytest.mark.parametrize("name", GROUP_RELATIVE)
@pytest.mark.parametrize("reward", [0.1, 1e6 + 0.3, -7.7])
def test_equal_rewards_give_exactly_no_advantage_in_single_precision(name, reward):
    """Adam would turn the rounding of a mean into steps of full size."""
    given = RoundRewards(
        torch.full((5,), reward),
        GROUPS,
        torch.zeros(5, 4),
        0.0,
        MASK,
        parts=torch.full((2, 5), reward),
        part_weights=torch.tensor([0.3, 0.7]),
    )
    assert given.rewards.dtype == torch.float32
    found, _ = estimate(name, **SETTINGS.get(name, {}))(given)
    assert found.abs().max() == 0


def test_a_large_common_reward_costs_no_digits():
    differences = torch.tensor([0.0, 0.25, 0.5, 0.0, 0.125])
    mask = torch.ones(5, 1, dtype=torch.bool)

    def at(common):
        given = RoundRewards(differences + common, GROUPS, torch.zeros(5, 1), 0.0, mask)
        return estimate("rloo")(given)[0]

    assert torch.equal(at(2.0**20), at(0.0))  # 2^20 + 1/8 has an exact float32


def test_a_response_that_is_not_trained_counts_in_the_baseline_only():
    mask = MASK.clone()
    mask[0] = False  # e.g. because the token limit cut it
    given = round_of(REWARDS, GROUPS, mask)
    found, _ = estimate("dr_grpo")(given)
    assert found[0].abs().sum() == 0
    torch.testing.assert_close(found[1:], spread((-2.0, -1.0, 3.0, -2.0, 2.0))[1:])


def test_an_estimator_without_what_it_needs_says_so():
    for name, what in (
        ("gae", "values of a critic"),
        ("remax", "rewards of greedy responses"),
        ("gdpo", "the parts of each reward"),
    ):
        with pytest.raises(ValueError, match=f"expected {what}, found none"):
            advantages(name, REWARDS, parts=None)
