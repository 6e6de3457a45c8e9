"""Policy losses on numbers worked out by hand. Shapes: B sequences, T tokens."""

import math

import pytest
import torch

from training_core.algorithms.policy_losses import POLICY_LOSSES
from training_core.algorithms.policy_tokens import PolicyTokens

SETTINGS = {
    "ppo_clip": {"clip_low": 0.2, "clip_high": 0.3},
    "dual_clip": {"clip_low": 0.2, "clip_high": 0.3, "dual": 3.0},
    "gspo": {"clip_low": 0.2, "clip_high": 0.3},
    "gspo_token": {"clip_low": 0.2, "clip_high": 0.3},
    "cispo": {"max_ratio": 2.0},
    "sapo": {"tau_positive": 1.0, "tau_negative": 2.0},
    "dppo_tv": {"limit_low": 0.2, "limit_high": 0.1, "max_ratio": 3.0},
    "dppo_kl": {"limit_low": 0.05, "limit_high": 0.02, "max_ratio": 3.0},
    "gmpo": {"clip_low": 0.4, "clip_high": 0.4},
}
F64 = torch.float64


def loss_of(name, logprobs, old_logprobs, advantages, mask=None):
    """Loss, is_clipped, and the gradient of the summed loss; all [B, T]."""
    logprobs = torch.tensor(logprobs, dtype=F64, requires_grad=True)
    old, given = torch.tensor(old_logprobs, dtype=F64), torch.tensor(advantages, dtype=F64)
    mask = torch.ones_like(old, dtype=torch.bool) if mask is None else torch.tensor(mask).bool()
    loss, clipped = POLICY_LOSSES[name].function(
        PolicyTokens(logprobs, old, given, mask), **SETTINGS[name]
    )
    (gradient,) = torch.autograd.grad(loss.masked_fill(~mask, 0.0).sum(), logprobs)
    return loss.detach(), clipped, gradient


def one_token(name, *, ratio=None, advantage, old=-2.0, new=None):
    logprob = new if ratio is None else old + math.log(ratio)
    found = loss_of(name, [[logprob]], [[old]], [[advantage]])
    return tuple(x.item() for x in found)


def test_every_loss_has_a_setting_here():
    assert SETTINGS.keys() == POLICY_LOSSES.keys()


@pytest.mark.parametrize("name", ["ppo_clip", "gspo", "gspo_token"])
@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "is_clipped"),
    [
        # inside the range: -r * A
        (1.1, 2.0, -2.2, False),
        (0.9, -2.0, 1.8, False),
        # A > 0: only a ratio above 1 + 0.3 is clipped: -1.3 * 2
        (1.5, 2.0, -2.6, True),
        (0.5, 2.0, -1.0, False),
        # A < 0: only a ratio below 1 - 0.2 is clipped: 0.8 * 2
        (0.5, -2.0, 1.6, True),
        (1.5, -2.0, 3.0, False),
    ],
)
def test_a_clip_works_only_on_the_side_that_would_gain(name, ratio, advantage, loss, is_clipped):
    found, clipped, gradient = one_token(name, ratio=ratio, advantage=advantage)
    assert found == pytest.approx(loss, abs=1e-12)
    assert clipped is is_clipped
    # d(-r A)/d logprob = -r A; nothing where clipped
    assert gradient == pytest.approx(0.0 if is_clipped else -ratio * advantage, abs=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "is_clipped"),
    [
        (2.5, -2.0, 5.0, False),  # -r A, below 3 * 2
        (4.0, -2.0, 6.0, True),  # limited to -3 A
        (4.0, 2.0, -2.6, True),  # A > 0: the clip of PPO, -1.3 * 2
    ],
)
def test_dual_clip_limits_the_loss_of_a_bad_token_that_became_likely(
    ratio, advantage, loss, is_clipped
):
    found, clipped, gradient = one_token("dual_clip", ratio=ratio, advantage=advantage)
    assert found == pytest.approx(loss, abs=1e-12)
    assert clipped is is_clipped
    assert gradient == pytest.approx(0.0 if is_clipped else -ratio * advantage, abs=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight"), [(0.1, 1.0, 0.1), (1.5, -2.0, 1.5), (7.0, 1.0, 2.0)]
)
def test_cispo_truncates_the_weight_and_keeps_every_gradient(ratio, advantage, weight):
    found, clipped, gradient = one_token("cispo", ratio=ratio, advantage=advantage)
    assert found == pytest.approx(-weight * advantage * (-2.0 + math.log(ratio)), abs=1e-12)
    assert gradient == pytest.approx(-weight * advantage, abs=1e-12)
    assert clipped is (ratio > 2.0)


@pytest.mark.parametrize(("advantage", "tau"), [(2.0, 1.0), (-2.0, 2.0)])
def test_sapo_fades_the_gradient_of_ratios_far_from_one(advantage, tau):
    found, clipped, gradient = one_token("sapo", ratio=1.5, advantage=advantage)
    gate = 1 / (1 + math.exp(-tau * 0.5))
    assert found == pytest.approx(-4 / tau * gate * advantage, abs=1e-12)
    # 4 sigma (1 - sigma) r A
    assert gradient == pytest.approx(-4 * gate * (1 - gate) * 1.5 * advantage, abs=1e-12)
    assert not clipped


@pytest.mark.parametrize(
    ("old", "new", "advantage", "is_clipped"),
    [
        (0.5, 0.61, 1.0, True),  # rose by 0.11 > 0.1
        (0.5, 0.59, 1.0, False),
        (0.5, 0.29, -1.0, True),  # fell by 0.21 > 0.2
        (0.5, 0.31, -1.0, False),
        (0.5, 0.2, 1.0, False),  # a good token that fell may rise again
        (0.5, 0.9, -1.0, False),
        (1e-5, 1e-4, 1.0, False),  # ten times as likely, and still unlikely: PPO would clip it
    ],
)
def test_dppo_masks_by_the_distance_of_probabilities(old, new, advantage, is_clipped):
    found, clipped, gradient = one_token(
        "dppo_tv", old=math.log(old), new=math.log(new), advantage=advantage
    )
    weight = min(new / old, 3.0)
    assert clipped is is_clipped
    assert gradient == pytest.approx(0.0 if is_clipped else -weight * advantage, rel=1e-12)
    expected = 0.0 if is_clipped else -weight * advantage * math.log(new)
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("old", "new", "advantage", "is_clipped"),
    [
        # 0.5 ln(0.5/0.7) + 0.5 ln(0.5/0.3) = -0.168236 + 0.255413 = 0.087177 nats
        (0.5, 0.7, 1.0, True),
        (0.5, 0.7, -1.0, False),
        (0.5, 0.3, -1.0, True),
        (0.5, 0.55, 1.0, False),  # 0.5 ln(0.5/0.55) + 0.5 ln(0.5/0.45) = 0.005025
        # 0.5 ln(0.5/0.4) + 0.5 ln(0.5/0.6) = 0.020411: above limit_high, below limit_low
        (0.5, 0.6, 1.0, True),
        (0.5, 0.4, -1.0, False),
        (0.5, 1.0, 1.0, True),  # the rest of the distribution has vanished
    ],
)
def test_dppo_masks_by_the_binary_kl(old, new, advantage, is_clipped):
    _, clipped, gradient = one_token(
        "dppo_kl", old=math.log(old), new=math.log(new), advantage=advantage
    )
    assert clipped is is_clipped
    assert gradient == pytest.approx(0.0 if is_clipped else -(new / old) * advantage, rel=1e-12)


def test_gspo_uses_one_ratio_for_all_tokens_of_a_response():
    # log-ratios 0.1 and 0.3 -> s = exp(0.2) = 1.2214, inside the range; the padding counts nothing
    loss, clipped, gradient = loss_of(
        "gspo", [[-1.0, -1.0, 9.0]], [[-1.1, -1.3, 0.0]], [[2.0, 2.0, 0.0]], [[1, 1, 0]]
    )
    s = math.exp(0.2)
    torch.testing.assert_close(loss[0, :2], torch.tensor([-2 * s] * 2, dtype=F64))
    assert not clipped.any()
    # both tokens' losses go through the mean: 2 * (1/2) * -2 s each
    torch.testing.assert_close(gradient, torch.tensor([[-2 * s, -2 * s, 0.0]], dtype=F64))


def test_gspo_token_is_gspo_where_a_response_has_one_advantage():
    rows = ([[-1.0, -1.0, 0.0], [-2.0, -0.5, -0.7]], [[-1.1, -1.3, 0.0], [-1.9, -0.9, -0.2]])
    advantages, mask = [[2.0, 2.0, 0.0], [-1.0, -1.0, -1.0]], [[1, 1, 0], [1, 1, 1]]
    one, other = (loss_of(name, *rows, advantages, mask) for name in ("gspo", "gspo_token"))
    for found, expected in zip(other, one, strict=True):
        torch.testing.assert_close(found, expected)


def test_gspo_token_credits_each_token_with_its_own_advantage():
    rows = ([[-1.0, -1.0]], [[-1.1, -1.3]], [[2.0, -3.0]])
    s = math.exp(0.2)
    _, _, gradient = loss_of("gspo_token", *rows)
    torch.testing.assert_close(gradient, torch.tensor([[-2 * s, 3 * s]], dtype=F64))
    _, _, shared = loss_of("gspo", *rows)  # here each token gets the mean of both, 0.5
    torch.testing.assert_close(shared, torch.tensor([[0.5 * s, 0.5 * s]], dtype=F64))


def test_gmpo_clips_each_log_ratio_before_the_geometric_mean():
    # A > 0: 0.6 is clipped to 0.4, -0.9 is not: exp((0.4 - 0.9) / 2)
    loss, clipped, gradient = loss_of("gmpo", [[-1.0, -1.9]], [[-1.6, -1.0]], [[2.0, 2.0]])
    s = math.exp(-0.25)
    torch.testing.assert_close(loss, torch.tensor([[-2 * s, -2 * s]], dtype=F64))
    assert clipped.tolist() == [[True, False]]
    torch.testing.assert_close(gradient, torch.tensor([[0.0, -2 * s]], dtype=F64))
    # A < 0: the other side
    loss, clipped, _ = loss_of("gmpo", [[-1.0, -1.9]], [[-1.6, -1.0]], [[-2.0, -2.0]])
    torch.testing.assert_close(loss[0, 0], torch.tensor(2 * math.exp(0.1), dtype=F64))
    assert clipped.tolist() == [[False, True]]


@pytest.mark.parametrize("name", list(POLICY_LOSSES))
def test_at_the_old_policy_every_loss_has_the_policy_gradient(name):
    logprobs, mask = [[-1.0, -2.0, 0.0], [-0.3, -0.2, -4.0]], [[1, 1, 0], [1, 1, 1]]
    advantages = [[0.5, 0.5, 0.0], [-3.0, -3.0, -3.0]]
    _, clipped, gradient = loss_of(name, logprobs, logprobs, advantages, mask)
    torch.testing.assert_close(gradient, -torch.tensor(advantages, dtype=F64))
    assert not clipped.any()


@pytest.mark.parametrize("name", list(POLICY_LOSSES))
def test_a_loss_stays_finite_where_the_policies_are_worlds_apart(name):
    rows = ([[-1.0, -2000.0], [-2000.0, -1.0]], [[-2000.0, -1.0], [-1.0, -2000.0]])
    for advantage in (1.0, -1.0, 0.0):
        loss, _, gradient = loss_of(name, *rows, [[advantage] * 2] * 2)
        assert torch.isfinite(loss).all()
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("name", list(POLICY_LOSSES))
def test_the_loss_of_a_response_does_not_depend_on_its_neighbours_or_its_padding(name):
    generator = torch.Generator().manual_seed(1)
    logprobs, old = -torch.rand(2, 3, 4, generator=generator, dtype=F64)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
    advantages = torch.tensor([[2.0], [-1.0], [0.5]], dtype=F64) * mask
    both = loss_of(
        name, (logprobs * mask).tolist(), (old * mask).tolist(), advantages.tolist(), mask.tolist()
    )
    alone = loss_of(
        name, logprobs[1:2, :2].tolist(), old[1:2, :2].tolist(), advantages[1:2, :2].tolist()
    )
    for whole, single in zip(both, alone, strict=True):
        torch.testing.assert_close(whole[1:2, :2], single)
