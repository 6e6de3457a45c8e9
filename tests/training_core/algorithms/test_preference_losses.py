"""Preference losses: hand arithmetic, laws, and what each row of the table says about itself."""

import inspect
import math

import pytest
import torch

from training_core.algorithms.pair_logprobs import PairLogprobs, chosen_nll
from training_core.algorithms.preference_losses import (
    PREFERENCE_LOSSES,
    dpo,
    dpo_norm,
    hinge,
    implicit_rewards,
    ipo,
    ipo_summed,
    orpo,
    robust,
    simpo,
)

LN_2 = math.log(2)
HYPERPARAMETERS = {"beta": 0.5, "label_smoothing": 0.1, "gamma": 0.3}


def pair(chosen, rejected, tokens=(1, 1), reference=(0.0, 0.0)):
    """One pair in double precision."""
    values = (chosen, rejected, *tokens, *reference)
    return PairLogprobs(*(torch.tensor([v], dtype=torch.float64) for v in values))


# log-ratios of 1 and -3 nats; per token 1/2 and -3/4
WORKED = pair(-6.0, -11.0, tokens=(2, 4), reference=(-7.0, -8.0))


def loss_of(name, pairs):
    row = PREFERENCE_LOSSES[name]
    wanted = set(inspect.signature(row.function).parameters) - {"pairs"}
    return row.function(pairs, **{k: v for k, v in HYPERPARAMETERS.items() if k in wanted})


def random_pairs(count=5, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw():
        return -scale * torch.rand(count, generator=generator, dtype=torch.float64) - 0.1

    tokens = torch.randint(1, 9, (2, count), generator=generator)
    chosen, rejected = draw().requires_grad_(), draw().requires_grad_()
    return PairLogprobs(chosen, rejected, tokens[0], tokens[1], draw(), draw())


# ------------------------------------------------------------------ hand arithmetic


def test_dpo_of_a_worked_pair():
    # margin = 0.5 * (1 - (-3)) = 2; -log sigmoid(2) = ln(1 + e^-2) = 0.126928
    loss = dpo(WORKED, beta=0.5, label_smoothing=0.0)
    assert loss.item() == pytest.approx(0.126928, abs=1e-6)


def test_dpo_with_label_smoothing_mixes_in_the_flipped_pair():
    # -0.9 * log sigmoid(2) - 0.1 * log sigmoid(-2) = 0.9 * 0.126928 + 0.1 * 2.126928 = 0.326928
    loss = dpo(WORKED, beta=0.5, label_smoothing=0.1)
    assert loss.item() == pytest.approx(0.326928, abs=1e-6)


def test_robust_takes_the_flipped_pair_off():
    # (0.9 * 0.126928 - 0.1 * 2.126928) / 0.8 = -0.098458 / 0.8 = -0.123072
    loss = robust(WORKED, beta=0.5, label_smoothing=0.1)
    assert loss.item() == pytest.approx(-0.123072, abs=1e-6)


def test_the_mean_of_robust_over_flipped_labels_is_dpo_under_the_true_ones():
    flipped = PairLogprobs(
        WORKED.rejected,
        WORKED.chosen,
        WORKED.rejected_tokens,
        WORKED.chosen_tokens,
        WORKED.ref_rejected,
        WORKED.ref_chosen,
    )
    noisy = [robust(pairs, beta=0.5, label_smoothing=0.2) for pairs in (WORKED, flipped)]
    torch.testing.assert_close(
        0.8 * noisy[0] + 0.2 * noisy[1], dpo(WORKED, beta=0.5, label_smoothing=0.0)
    )


def test_ipo_averages_over_the_tokens_of_each_response():
    # 1/2 - (-3/4) = 1.25; (1.25 - 1 / (2 * 0.25))^2 = 0.75^2
    assert ipo(WORKED, beta=0.25).item() == pytest.approx(0.5625)


def test_summed_ipo_takes_the_whole_response():
    # (1 - (-3) - 1 / (2 * 0.25))^2 = 2^2
    assert ipo_summed(WORKED, beta=0.25).item() == pytest.approx(4.0)


def test_hinge_is_zero_beyond_the_margin_and_linear_before_it():
    # 1 - 0.1 * 4 = 0.6; 1 - 0.25 * 4 = 0; 1 - 0.5 * 4 < 0
    for beta, expected in ((0.1, 0.6), (0.25, 0.0), (0.5, 0.0)):
        assert hinge(WORKED, beta=beta).item() == pytest.approx(expected)


def test_simpo_compares_mean_logprobs_with_a_target_margin():
    # means -6/2 = -3 and -11/4 = -2.75; 2 * (-0.25) - 0.5 = -1; ln(1 + e^1) = 1.313262
    loss = simpo(WORKED, beta=2.0, gamma=0.5)
    assert loss.item() == pytest.approx(1.313262, abs=1e-6)


def test_orpo_is_the_nll_plus_the_log_odds_ratio():
    # mean log-probabilities ln 1/2 and ln 1/4: odds 1 and 1/3, odds ratio 3,
    # -log sigmoid(ln 3) = ln(1 + 1/3) = 0.287682; ln 2 + 0.1 * 0.287682 = 0.721915
    pairs = pair(2 * math.log(1 / 2), 3 * math.log(1 / 4), tokens=(2, 3))
    assert orpo(pairs, beta=0.1).item() == pytest.approx(0.721915, abs=1e-6)


def test_normalised_dpo_averages_over_the_tokens_of_each_response():
    # 4 * (1/2 - (-3/4)) = 5; ln(1 + e^-5) = 0.006715; smoothed 0.9 * 0.006715 + 0.1 * 5.006715
    assert dpo_norm(WORKED, beta=4.0, label_smoothing=0.0).item() == pytest.approx(
        0.006715, abs=1e-6
    )
    assert dpo_norm(WORKED, beta=4.0, label_smoothing=0.1).item() == pytest.approx(
        0.506715, abs=1e-6
    )


def test_the_nll_term_is_a_mean_per_response():
    # -(-6) / 2
    assert chosen_nll(WORKED).item() == pytest.approx(3.0)


# ------------------------------------------------------------------ laws


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dpo", LN_2),
        ("robust", LN_2),
        ("dpo_norm", LN_2),
        ("hinge", 1.0),
        ("ipo", 1.0),  # (1 / (2 * 0.5))^2
        ("ipo_summed", 1.0),
    ],
)
def test_where_policy_and_reference_agree_the_loss_is_known(name, expected):
    agreeing = pair(-6.0, -11.0, tokens=(2, 4), reference=(-6.0, -11.0))
    assert loss_of(name, agreeing).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", sorted(PREFERENCE_LOSSES))
def test_a_step_against_the_gradient_prefers_the_chosen(name):
    pairs = pair(-6.0, -6.0, tokens=(3, 3), reference=(-6.0, -6.0))
    for side in (pairs.chosen, pairs.rejected):
        side.requires_grad_()
    chosen, rejected = torch.autograd.grad(
        loss_of(name, pairs).sum(), (pairs.chosen, pairs.rejected)
    )
    assert chosen.item() < 0 < rejected.item()


def test_the_gradient_of_dpo_at_the_reference_is_half_of_beta():
    pairs = pair(-6.0, -6.0, reference=(-6.0, -6.0))
    sides = pairs.chosen.requires_grad_(), pairs.rejected.requires_grad_()
    loss = dpo(pairs, beta=0.1, label_smoothing=0.0).sum()
    # -beta * sigmoid(-0) = -0.05, and its opposite
    gradients = torch.autograd.grad(loss, sides)
    assert [g.item() for g in gradients] == pytest.approx([-0.05, 0.05])


@pytest.mark.parametrize("name", sorted(PREFERENCE_LOSSES))
def test_gradients_are_those_of_finite_differences(name):
    known = random_pairs()

    def loss(chosen, rejected):
        pairs = PairLogprobs(
            chosen,
            rejected,
            known.chosen_tokens,
            known.rejected_tokens,
            known.ref_chosen,
            known.ref_rejected,
        )
        return loss_of(name, pairs)

    assert torch.autograd.gradcheck(loss, (known.chosen, known.rejected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sides", [(-1e4, 0.0), (0.0, -1e4), (0.0, 0.0), (-1e4, -1e4)])
@pytest.mark.parametrize("name", sorted(PREFERENCE_LOSSES))
def test_losses_and_gradients_are_finite_at_margins_of_10_000_nats(name, sides, dtype):
    chosen, rejected = (torch.tensor([v], dtype=dtype, requires_grad=True) for v in sides)
    ones, zeros = torch.ones(1, dtype=dtype), torch.zeros(1, dtype=dtype)
    loss = loss_of(name, PairLogprobs(chosen, rejected, ones, ones, zeros, zeros))
    assert torch.isfinite(loss).all()
    for gradient in torch.autograd.grad(loss.sum(), (chosen, rejected)):
        assert torch.isfinite(gradient).all()


# ------------------------------------------------------------------ what the rows say


@pytest.mark.parametrize("name", sorted(PREFERENCE_LOSSES))
def test_a_row_needs_the_reference_exactly_if_it_says_so(name):
    known = random_pairs()
    bare = PairLogprobs(known.chosen, known.rejected, known.chosen_tokens, known.rejected_tokens)
    if PREFERENCE_LOSSES[name].needs_reference:
        with pytest.raises(ValueError, match="expected ref_chosen and ref_rejected, found None"):
            loss_of(name, bare)
    else:
        torch.testing.assert_close(loss_of(name, bare), loss_of(name, known), rtol=0, atol=0)


@pytest.mark.parametrize("name", sorted(PREFERENCE_LOSSES))
def test_a_row_looks_at_lengths_exactly_if_it_says_so(name):
    known = random_pairs()
    longer = PairLogprobs(
        known.chosen,
        known.rejected,
        known.chosen_tokens + 1,
        known.rejected_tokens + 2,
        known.ref_chosen,
        known.ref_rejected,
    )
    is_moved = not torch.equal(loss_of(name, known), loss_of(name, longer))
    assert is_moved is PREFERENCE_LOSSES[name].is_length_normalised


@pytest.mark.parametrize("name", sorted(PREFERENCE_LOSSES))
def test_a_loss_of_many_pairs_is_the_losses_of_each(name):
    known = random_pairs()
    fields = (
        known.chosen,
        known.rejected,
        known.chosen_tokens,
        known.rejected_tokens,
        known.ref_chosen,
        known.ref_rejected,
    )
    alone = [loss_of(name, PairLogprobs(*(f[i : i + 1] for f in fields))) for i in range(5)]
    torch.testing.assert_close(loss_of(name, known), torch.cat(alone), rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dpo", (0.5, -1.5)),  # 0.5 * 1 and 0.5 * (-3)
        ("ipo", (0.25, -0.375)),  # 0.5 * 1/2 and 0.5 * (-3/4)
        ("dpo_norm", (0.25, -0.375)),
        ("simpo", (-1.5, -1.375)),  # 0.5 * (-6/2) and 0.5 * (-11/4)
        ("orpo", (-1.5, -1.375)),
    ],
)
def test_implicit_rewards_follow_the_facts_of_the_row(name, expected):
    rewards = implicit_rewards(PREFERENCE_LOSSES[name], WORKED, beta=0.5)
    assert [r.item() for r in rewards] == pytest.approx(expected)


def test_implicit_rewards_carry_no_gradient():
    rewards = implicit_rewards(PREFERENCE_LOSSES["dpo"], random_pairs(), beta=0.1)
    assert not any(r.requires_grad for r in rewards)
