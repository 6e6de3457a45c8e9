"""Our losses against TRL's, computed by TRL itself on the same numbers.

TRL keeps most of its losses inside trainers. `Stub` is the part of a trainer that a loss looks at,
and `said` a model that answers with log-probabilities made up here, so that TRL's own code runs on
them and nothing else does. Install the extra `trl` to run this file.
"""

import math
from collections import defaultdict
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

from training_core.algorithms.distillation_losses import DIVERGENCES, token_divergence
from training_core.algorithms.logprobs import Head
from training_core.algorithms.pair_logprobs import PairLogprobs
from training_core.algorithms.preference_losses import PREFERENCE_LOSSES, implicit_rewards
from training_core.algorithms.reward_losses import bradley_terry
from training_core.algorithms.unpaired_losses import UNPAIRED_LOSSES

trl = pytest.importorskip("trl", reason="TRL is not installed; the extra `trl` brings it")
CPOTrainer = import_module("trl.experimental.cpo.cpo_trainer").CPOTrainer
ORPOTrainer = import_module("trl.experimental.orpo.orpo_trainer").ORPOTrainer
GKDTrainer = import_module("trl.experimental.gkd.gkd_trainer").GKDTrainer

WIDTH = 7
"""Columns of a sequence; column 0 is the prompt, and no response fills all others."""


class Stub(SimpleNamespace):
    """What a TRL loss looks at of its trainer, on one process."""

    def __init__(self, **facts):
        alone = SimpleNamespace(
            device=torch.device("cpu"), gather=lambda x: x, gather_for_metrics=lambda x: x
        )
        super().__init__(
            accelerator=alone,
            model=SimpleNamespace(training=False),
            _metrics=defaultdict(lambda: defaultdict(list)),
            _total_train_tokens=0,
            aux_loss_enabled=False,
            **facts,
        )


def said(logprobs):
    """Build a model that gives the targets of each row these log-probabilities, 0 elsewhere."""

    def model(**inputs):
        is_target = inputs["labels"][:, 1:] != -100
        other = torch.zeros_like(logprobs)
        return SimpleNamespace(
            log_probs=logprobs.masked_fill(~is_target, 0.0),
            entropy=other,
            mean_logits=other,
            is_top1=other.bool(),
        )

    return model


def draw(*shape, seed=0, requires_grad=False):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return values.requires_grad_(requires_grad)


def responses(lengths):
    """Ids [B, T] and completion mask [B, T] of responses that follow one prompt token."""
    mask = torch.tensor([[0] + [1] * n + [0] * (WIDTH - 1 - n) for n in lengths])
    return torch.arange(1, WIDTH + 1).expand_as(mask), mask


def assert_same_with_gradient(ours, theirs, inputs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    # Both may share the graph below their log-probabilities, so it is kept.
    gradients = (torch.autograd.grad(loss, inputs, retain_graph=True) for loss in (ours, theirs))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


# ------------------------------------------------------------------ pairs

LENGTHS = (3, 6, 1, 4, 2, 5)
"""Three chosen, then three rejected responses, in tokens."""


def trl_dpo(loss_type, logprobs, ref_logprobs, *, beta, label_smoothing=0.0):
    """TRL's loss [], and its rewards of the chosen and the rejected, both means over the pairs."""
    ids, mask = responses(LENGTHS)
    stub = Stub(
        beta=beta,
        label_smoothing=label_smoothing,
        loss_types=[loss_type],
        loss_weights=[1.0],
        f_divergence_type="reverse_kl",
        ld_alpha=None,
        precompute_ref_logps=True,
        use_weighting=False,
    )
    ref_chosen, ref_rejected = (ref_logprobs * mask[:, 1:]).sum(dim=1).chunk(2)
    inputs = {
        "input_ids": ids,
        "attention_mask": mask,
        "completion_mask": mask,
        "ref_chosen_logps": ref_chosen,
        "ref_rejected_logps": ref_rejected,
    }
    loss = trl.DPOTrainer._compute_loss(stub, said(logprobs), inputs, return_outputs=False)
    rewards = [stub._metrics["eval"][f"rewards/{side}"][0] for side in ("chosen", "rejected")]
    return loss, rewards


def our_pairs(logprobs, ref_logprobs=None):
    _, mask = responses(LENGTHS)
    sums = [
        (x * mask[:, 1:]).sum(dim=1).chunk(2) for x in (logprobs, ref_logprobs) if x is not None
    ]
    return PairLogprobs(*sums[0], *mask.sum(dim=1).chunk(2), *(sums[1] if sums[1:] else ()))


@pytest.mark.parametrize(
    ("name", "loss_type", "hyperparameters", "theirs"),
    [
        ("dpo", "sigmoid", {"beta": 0.3, "label_smoothing": 0.0}, {}),
        ("robust", "robust", {"beta": 0.3, "label_smoothing": 0.2}, {"label_smoothing": 0.2}),
        ("ipo", "ipo", {"beta": 0.3}, {}),
        ("hinge", "hinge", {"beta": 0.3}, {}),
        ("dpo_norm", "sigmoid_norm", {"beta": 5.0, "label_smoothing": 0.0}, {}),
    ],
)
def test_the_dpo_family_is_that_of_dpotrainer(name, loss_type, hyperparameters, theirs):
    logprobs = draw(6, WIDTH - 1, seed=1, requires_grad=True)
    ref_logprobs = draw(6, WIDTH - 1, seed=2)
    beta = hyperparameters["beta"]
    expected, _ = trl_dpo(loss_type, logprobs, ref_logprobs, beta=beta, **theirs)
    pairs = our_pairs(logprobs, ref_logprobs)
    found = PREFERENCE_LOSSES[name].function(pairs, **hyperparameters).mean()
    assert_same_with_gradient(found, expected, (logprobs,))


def test_implicit_rewards_are_those_of_dpotrainer():
    logprobs, ref_logprobs = draw(6, WIDTH - 1, seed=1), draw(6, WIDTH - 1, seed=2)
    _, expected = trl_dpo("sigmoid", logprobs, ref_logprobs, beta=0.3)
    pairs = our_pairs(logprobs, ref_logprobs)
    rewards = implicit_rewards(PREFERENCE_LOSSES["dpo"], pairs, beta=0.3)
    assert [r.mean().item() for r in rewards] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "loss_type", "smoothing"),
    [("dpo", "sigmoid", 0.2), ("hinge", "hinge", 0.0), ("ipo_summed", "ipo", 0.0)],
)
def test_against_an_indifferent_reference_the_losses_on_sums_are_those_of_cpotrainer(
    name, loss_type, smoothing
):
    # CPOTrainer has no reference, so ours is one of zeros; it is TRL's only conservative loss.
    logprobs = draw(6, WIDTH - 1, seed=1, requires_grad=True)
    pairs = our_pairs(logprobs, torch.zeros(6, WIDTH - 1, dtype=torch.float64))
    stub = Stub(alpha=0.0, beta=0.3, loss_type=loss_type, label_smoothing=smoothing)
    expected, *_ = CPOTrainer.cpo_loss(stub, pairs.chosen, pairs.rejected)
    hyperparameters = {"label_smoothing": smoothing} if smoothing else {}
    found = PREFERENCE_LOSSES[name].function(pairs, beta=0.3, **hyperparameters)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert_same_with_gradient(found.sum(), expected.sum(), (logprobs,))


def test_simpo_is_that_of_cpotrainer():
    logprobs = draw(6, WIDTH - 1, seed=1, requires_grad=True)
    pairs = our_pairs(logprobs)
    stub = Stub(alpha=0.0, beta=2.0, loss_type="simpo", simpo_gamma=0.7, label_smoothing=0.0)
    expected, *rewards = CPOTrainer.cpo_loss(stub, *pairs.mean_logprobs())
    row = PREFERENCE_LOSSES["simpo"]
    found = row.function(pairs, beta=2.0, gamma=0.7)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert_same_with_gradient(found.sum(), expected.sum(), (logprobs,))
    for ours, theirs in zip(implicit_rewards(row, pairs, beta=2.0), rewards, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_the_odds_ratio_is_that_of_orpotrainer():
    # Negative, as log-probabilities are; ORPOTrainer computes in single precision.
    logprobs = -draw(6, WIDTH - 1, seed=1).abs() - 0.01
    pairs = our_pairs(logprobs)
    chosen, rejected = pairs.mean_logprobs()
    odds_ratio, *rewards = ORPOTrainer.odds_ratio_loss(Stub(beta=0.1), chosen, rejected)[:3]
    row = PREFERENCE_LOSSES["orpo"]
    found = row.function(pairs, beta=0.1)
    torch.testing.assert_close(found, -chosen - odds_ratio, rtol=0, atol=1e-6, check_dtype=False)
    for ours, theirs in zip(implicit_rewards(row, pairs, beta=0.1), rewards, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6, check_dtype=False)


# ------------------------------------------------------------------ rewards


@pytest.mark.parametrize("margin", [None, [0.0, 0.5, 3.0]])
@pytest.mark.parametrize("centering_coef", [None, 0.01])
def test_the_reward_loss_is_that_of_rewardtrainer(margin, centering_coef):
    rewards = draw(6, seed=3, requires_grad=True)
    inputs = {"attention_mask": torch.ones(6, 2)}
    if margin is not None:
        inputs["margin"] = torch.tensor(margin, dtype=torch.float64)
    stub = Stub(args=SimpleNamespace(center_rewards_coefficient=centering_coef))
    expected = trl.RewardTrainer.compute_loss(
        stub, lambda **_: SimpleNamespace(logits=rewards[:, None]), dict(inputs)
    )
    found = bradley_terry(
        *rewards.chunk(2), inputs.get("margin", 0.0), centering_coef=centering_coef or 0.0
    )
    assert_same_with_gradient(found.mean(), expected, (rewards,))


# ------------------------------------------------------------------ unpaired


@pytest.mark.parametrize("shift", [4.0, -4.0], ids=["baseline_above_zero", "baseline_at_zero"])
def test_kto_and_its_baseline_are_those_of_ktotrainer(shift):
    ids, mask = responses((3, 6, 1, 4))
    logprobs = draw(4, WIDTH - 1, seed=4, requires_grad=True)
    ref_logprobs, mismatched = draw(4, WIDTH - 1, seed=5), draw(4, WIDTH - 1, seed=6) + shift
    is_desirable = torch.tensor([True, False, True, True])

    def sums(values):
        return (values * mask[:, 1:]).sum(dim=1)

    hyperparameters = {"beta": 0.2, "desirable_weight": 1.2, "undesirable_weight": 0.7}
    stub = Stub(
        loss_type="kto",
        calculate_KL=True,
        precompute_ref_logps=True,
        _compute_kl_logps=lambda _model, _batch: sums(mismatched),
        **hyperparameters,
    )
    inputs = {
        "input_ids": ids,
        "attention_mask": mask,
        "completion_mask": mask,
        "label": is_desirable,
        "ref_logps": sums(ref_logprobs),
        "ref_KL_logps": sums(ref_logprobs),
    }
    expected = trl.KTOTrainer._compute_loss(stub, said(logprobs), inputs, return_outputs=False)
    row = UNPAIRED_LOSSES["kto"]
    baseline = row.baseline(sums(mismatched) - sums(ref_logprobs))
    assert baseline.item() == pytest.approx(stub._metrics["eval"]["kl"][0], abs=1e-12)
    assert (baseline > 0).item() is (shift > 0)
    logratios = sums(logprobs) - sums(ref_logprobs)
    found = row.function(logratios, is_desirable, baseline, **hyperparameters)
    assert_same_with_gradient(found.mean(), expected, (logprobs,))


# ------------------------------------------------------------------ distillation


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(
    ("name", "hyperparameters", "their_beta"),
    [
        ("forward_kl", {}, 0.0),
        ("reverse_kl", {}, 1.0),
        ("jsd", {"beta": 0.5}, 0.5),
        ("jsd", {"beta": 0.1}, 0.1),
    ],
)
def test_divergences_are_those_of_gkdtrainer(name, hyperparameters, their_beta, temperature):
    hidden, weight = draw(5, 4, seed=7, requires_grad=True), draw(9, 4, seed=8, requires_grad=True)
    teacher_hidden, teacher_weight = draw(5, 6, seed=9), draw(9, 6, seed=10)
    per_token = GKDTrainer.generalized_jsd_loss(
        hidden @ weight.T,
        teacher_hidden @ teacher_weight.T,
        beta=their_beta,
        temperature=temperature,
        reduction="none",
    ).sum(dim=-1)
    found = token_divergence(
        DIVERGENCES[name],
        hidden,
        Head(weight, temperature=temperature),
        teacher_hidden,
        Head(teacher_weight, temperature=temperature),
        chunk_positions=2,
        **hyperparameters,
    )
    torch.testing.assert_close(found, per_token, rtol=0, atol=1e-12)
    assert_same_with_gradient(found.sum(), per_token.sum(), (hidden, weight))


def test_trl_calls_jsd_at_its_ends_the_kls_although_jsd_vanishes_there():
    student, teacher = draw(5, 9, seed=11), draw(5, 9, seed=12)
    tiny = 1e-7
    near = GKDTrainer.generalized_jsd_loss(student, teacher, beta=tiny, reduction="sum")
    at = GKDTrainer.generalized_jsd_loss(student, teacher, beta=0, reduction="sum")
    assert near.item() < 1e-5 < at.item()
    assert math.isclose(near.item() / tiny, at.item(), rel_tol=1e-3)
