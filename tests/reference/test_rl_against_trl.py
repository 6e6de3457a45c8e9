"""Our policy losses, aggregations and advantages against TRL's, as in `test_against_trl`."""

from collections import defaultdict
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

from tests.rounds import estimate
from training_core.algorithms.aggregation import AGGREGATIONS
from training_core.algorithms.estimators import RoundRewards
from training_core.algorithms.kl import k3
from training_core.algorithms.policy_losses import POLICY_LOSSES
from training_core.algorithms.policy_tokens import PolicyTokens
from training_core.objectives.reinforcement import KlLoss

trl = pytest.importorskip("trl", reason="TRL is not installed; the extra `trl` brings it")
GMPOTrainer = import_module("trl.experimental.gmpo.gmpo_trainer").GMPOTrainer

LENGTHS = (3, 6, 1, 4)
WIDTH = 6
MASK = torch.tensor([[1] * n + [0] * (WIDTH - n) for n in LENGTHS])


def draw(seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(4, WIDTH, generator=generator, dtype=torch.float64)


ADVANTAGES = torch.tensor([1.5, -0.5, 2.0, -1.0], dtype=torch.float64)
OLD = -1.0 - draw(1).abs()
REFERENCE = -1.0 - draw(2).abs()
CORRECTION = draw(3, 0.3).exp()


def tokens(logprobs):
    """Zero outside the mask, as our models give them."""
    old = OLD.masked_fill(MASK == 0, 0.0)
    return PolicyTokens(logprobs, old, ADVANTAGES[:, None].expand(4, WIDTH), MASK.bool())


def trl_loss(trainer, logprobs, *, loss_type="grpo", level="token", beta=0.0, **settings):
    """The loss of a TRL trainer on log-probabilities made up here."""
    alone = SimpleNamespace(
        gather=lambda x: x, reduce=lambda x, **_: x, num_processes=1, sync_gradients=True
    )
    args = SimpleNamespace(
        delta=settings.pop("delta", None),
        sapo_temperature_pos=settings.pop("tau_positive", 1.0),
        sapo_temperature_neg=settings.pop("tau_negative", 1.0),
        use_bias_correction_kl=settings.pop("by_ratio", False),
        steps_per_generation=1,
    )
    stub = SimpleNamespace(
        accelerator=alone,
        args=args,
        model=SimpleNamespace(training=True),
        _metrics=defaultdict(lambda: defaultdict(list)),
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, draw(9).abs(), None),
        loss_type=loss_type,
        importance_sampling_level=level,
        beta=beta,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=settings.pop("corrects", False),
        vllm_importance_sampling_correction=True,
        current_gradient_accumulation_steps=1,
        max_completion_length=8,
        _entropy_bonus_enabled=False,
        epsilon_low=settings.pop("clip_low", 0.2),
        epsilon_high=settings.pop("clip_high", 0.3),
    )
    assert not settings
    inputs = {
        "prompt_ids": torch.ones(4, 1),
        "prompt_mask": torch.ones(4, 1),
        "completion_ids": torch.ones(4, WIDTH),
        "completion_mask": MASK,
        "advantages": ADVANTAGES,
        "old_per_token_logps": OLD,
        "ref_per_token_logps": REFERENCE,
        "importance_sampling_ratio": CORRECTION,
        "num_items_in_batch": MASK.sum(),
    }
    return trainer._compute_loss(stub, None, inputs)


def ours(name, logprobs, aggregation, *, kl_coef=0.0, by_ratio=False, weights=None, **settings):
    losses, _ = POLICY_LOSSES[name].function(tokens(logprobs), **settings)
    if weights is not None:
        losses = losses * weights
    if kl_coef:
        kl_loss = KlLoss(k3, kl_coef, by_ratio)
        losses = losses + kl_coef * kl_loss.per_token(tokens(logprobs), REFERENCE)
    total, count = AGGREGATIONS[aggregation](losses, MASK.bool(), 8)
    return total / count


def assert_same(found, expected, logprobs):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    one, other = (
        torch.autograd.grad(loss, logprobs, retain_graph=True)[0] for loss in (found, expected)
    )
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert float(one.abs().max()) > 1e-3


def current(spread=0.3):
    """Log-probabilities near the old ones; zero outside the mask."""
    moved = (OLD + draw(4, spread)).masked_fill(MASK == 0, 0.0)
    return moved.requires_grad_()


CLIP = {"clip_low": 0.2, "clip_high": 0.3}


@pytest.mark.parametrize(
    ("name", "aggregation", "settings", "theirs"),
    [
        ("ppo_clip", "sequence_mean", CLIP, {"loss_type": "grpo"}),
        ("ppo_clip", "token_mean", CLIP, {"loss_type": "bnpo"}),
        ("ppo_clip", "token_mean", CLIP, {"loss_type": "dapo"}),
        ("ppo_clip", "constant_length", CLIP, {"loss_type": "dr_grpo"}),
        ("gspo", "sequence_mean", CLIP, {"loss_type": "grpo", "level": "sequence"}),
        ("gspo_token", "sequence_mean", CLIP, {"loss_type": "grpo", "level": "sequence"}),
        ("cispo", "token_mean", {"max_ratio": 1.2}, {"loss_type": "cispo", "clip_high": 1.2}),
        (
            "sapo",
            "sequence_mean",
            {"tau_positive": 1.0, "tau_negative": 1.25},
            {"loss_type": "sapo", "tau_negative": 1.25},
        ),
    ],
)
def test_the_policy_losses_are_those_of_grpotrainer(name, aggregation, settings, theirs):
    logprobs = current()
    expected = trl_loss(trl.GRPOTrainer, logprobs, **theirs)
    assert_same(ours(name, logprobs, aggregation, **settings), expected, logprobs)


@pytest.mark.parametrize("by_ratio", [False, True])
@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean"])
def test_the_kl_in_the_loss_and_the_correction_are_those_of_grpotrainer(aggregation, by_ratio):
    logprobs, kl = current(), {"by_ratio": by_ratio}
    loss_type = {"sequence_mean": "grpo", "token_mean": "dapo"}[aggregation]
    theirs = {"loss_type": loss_type, "beta": 0.04, "corrects": True, **kl}
    expected = trl_loss(trl.GRPOTrainer, logprobs, **theirs)
    found = ours("ppo_clip", logprobs, aggregation, kl_coef=0.04, weights=CORRECTION, **kl, **CLIP)
    assert_same(found, expected, logprobs)


def test_gmpo_is_that_of_gmpotrainer():
    logprobs = current()
    settings = {"clip_low": 0.25, "clip_high": 0.35}
    expected = trl_loss(GMPOTrainer, logprobs, **settings)
    assert_same(ours("gmpo", logprobs, "sequence_mean", **settings), expected, logprobs)


def rewards_of(groups):
    flat = torch.tensor([r for group in groups for r in group], dtype=torch.float64)
    numbers = torch.tensor([i for i, group in enumerate(groups) for _ in group])
    kl = torch.zeros(len(flat), 1, dtype=torch.float64)
    return RoundRewards(flat, numbers, kl, 0.0, torch.ones_like(kl, dtype=torch.bool))


def test_the_deviation_of_a_group_is_that_of_trl():
    nanstd = import_module("trl.trainer.utils").nanstd
    groups = [[1.0, 4.0, -2.0], [0.5, 0.5, 3.0]]
    given = torch.tensor(groups, dtype=torch.float64)
    expected = (given - given.mean(dim=1, keepdim=True)) / (nanstd(given, dim=1)[:, None] + 1e-4)
    found, _ = estimate("grpo", std_epsilon=1e-4)(rewards_of(groups))
    torch.testing.assert_close(found[:, 0], expected.flatten(), rtol=0, atol=1e-12)
