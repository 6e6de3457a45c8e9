"""Numbers worked out by hand. Shapes: B sequences, T tokens."""

import torch

from training_core.algorithms.advantages import gae, token_rewards

NAN = float("nan")


def test_the_reward_lands_on_the_last_response_token_and_kl_on_each():
    mask = torch.tensor([[False, True, True, False], [False, True, False, True]])
    kl = torch.tensor([[9.0, 0.5, -1.0, 9.0], [9.0, 2.0, 9.0, 4.0]])
    found = token_rewards(torch.tensor([3.0, -1.0]), kl, mask, kl_coef=0.1)
    # row 0: -0.1 * 0.5 = -0.05; -0.1 * -1 + 3 = 3.1
    # row 1: -0.1 * 2 = -0.2; -0.1 * 4 - 1 = -1.4 (the gap between belongs to a tool)
    expected = torch.tensor([[0.0, -0.05, 3.1, 0.0], [0.0, -0.2, 0.0, -1.4]])
    torch.testing.assert_close(found, expected)


def test_a_nan_in_the_kl_of_padding_does_not_reach_the_rewards():
    mask = torch.tensor([[False, True, False]])
    found = token_rewards(torch.tensor([2.0]), torch.tensor([[NAN, 1.0, NAN]]), mask, kl_coef=0.5)
    torch.testing.assert_close(found, torch.tensor([[0.0, 1.5, 0.0]]))  # 2 - 0.5 * 1


def test_padding_a_row_does_not_move_its_reward():
    mask = torch.tensor([[False, True, True]])
    wide = torch.cat([mask, torch.zeros(1, 4, dtype=torch.bool)], dim=1)
    rewards = torch.tensor([1.0])
    narrow_rewards = token_rewards(rewards, torch.ones(1, 3), mask, kl_coef=0.1)
    wide_rewards = token_rewards(rewards, torch.ones(1, 7), wide, kl_coef=0.1)
    torch.testing.assert_close(wide_rewards[:, :3], narrow_rewards)
    assert wide_rewards[:, 3:].abs().sum() == 0


def test_gae_of_three_tokens():
    rewards, values = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.5, 0.25, 0.75]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    advantages, returns = gae(rewards, values, mask, gamma=0.5, gae_lambda=0.5)
    # t=2: delta = 1 + 0 - 0.75 = 0.25;                    A = 0.25
    # t=1: delta = 0 + 0.5*0.75 - 0.25 = 0.125;            A = 0.125 + 0.25*0.25 = 0.1875
    # t=0: delta = 0 + 0.5*0.25 - 0.5 = -0.375;            A = -0.375 + 0.25*0.1875 = -0.328125
    torch.testing.assert_close(advantages, torch.tensor([[-0.328125, 0.1875, 0.25]]))
    torch.testing.assert_close(returns, torch.tensor([[0.171875, 0.4375, 1.0]]))  # A + V


def test_gae_skips_a_gap_and_ignores_what_stands_in_it():
    dense = gae(
        torch.tensor([[0.1, 1.0]]),
        torch.tensor([[0.3, 0.6]]),
        torch.ones(1, 2, dtype=torch.bool),
        gamma=0.9,
        gae_lambda=0.8,
    )
    mask = torch.tensor([[False, True, False, False, True, False]])
    rewards = torch.tensor([[7.0, 0.1, 7.0, 7.0, 1.0, 7.0]])
    values = torch.tensor([[9.0, 0.3, 9.0, 9.0, 0.6, 9.0]])
    gapped = gae(rewards, values, mask, gamma=0.9, gae_lambda=0.8)
    for found, expected in zip(gapped, dense, strict=True):
        torch.testing.assert_close(found[mask], expected[0])
        assert found[~mask].abs().sum() == 0
    # by hand: A_1 = 1 - 0.6 = 0.4; A_0 = (0.1 + 0.9*0.6 - 0.3) + 0.72*0.4 = 0.34 + 0.288 = 0.628
    torch.testing.assert_close(gapped[0][mask], torch.tensor([0.628, 0.4]))


def test_gae_ignores_nan_outside_the_mask():
    mask = torch.tensor([[False, True, False]])
    nan = torch.tensor([[NAN, 1.0, NAN]])
    advantages, returns = gae(nan, nan * 0.25, mask, gamma=1.0, gae_lambda=1.0)
    torch.testing.assert_close(advantages, torch.tensor([[0.0, 0.75, 0.0]]))  # 1 - 0.25
    torch.testing.assert_close(returns, torch.tensor([[0.0, 1.0, 0.0]]))


def test_a_padded_tail_neither_decays_nor_bootstraps():
    rewards, values = torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, 1.0]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    short = gae(rewards, values, mask, gamma=0.9, gae_lambda=0.9)
    pad = torch.nn.functional.pad
    long = gae(
        pad(rewards, (0, 5), value=3.0),
        pad(values, (0, 5), value=8.0),
        pad(mask, (0, 5)),
        gamma=0.9,
        gae_lambda=0.9,
    )
    for a, b in zip(short, long, strict=True):
        torch.testing.assert_close(b[:, :2], a)


def test_with_lambda_one_the_return_is_the_discounted_sum_of_rewards_whatever_the_values():
    rewards = torch.tensor([[1.0, 2.0, 4.0]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    _, returns = gae(rewards, torch.randn(1, 3), mask, gamma=0.5, gae_lambda=1.0)
    # 1 + 0.5*2 + 0.25*4 = 3; 2 + 0.5*4 = 4; 4
    torch.testing.assert_close(returns, torch.tensor([[3.0, 4.0, 4.0]]))


def test_with_lambda_zero_the_advantage_is_the_one_step_error():
    rewards, values = torch.tensor([[1.0, 2.0]]), torch.tensor([[5.0, 7.0]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    advantages, _ = gae(rewards, values, mask, gamma=1.0, gae_lambda=0.0)
    torch.testing.assert_close(advantages, torch.tensor([[3.0, -5.0]]))  # 1+7-5; 2-7
