"""Silent bugs of reinforcement learning, one test per family that had no guard yet."""

import copy
from functools import partial

import pytest
import torch
from pydantic import ValidationError

from stages.configs.ppo_config import PpoConfig
from stages.reinforcement.ppo_objectives import policy_objective_of
from stages.reinforcement.pretraining_mix import PretrainingMix
from tests.families.objectives import GradientKeeper, cases
from tests.rounds import estimate, experience_of
from tests.tolerances import assert_same_gradients
from training_core.algorithms.kl import k1, k3
from training_core.algorithms.policy_losses import POLICY_LOSSES, ppo_clip
from training_core.algorithms.policy_tokens import PolicyTokens
from training_core.data.batching import collate
from training_core.loop import train_steps
from training_core.objectives.supervised import supervised
from training_core.types import Example, Experience, Prompt, Rollout, ScoredRollout

LENGTHS = (3, 9, 5, 2, 7)


def ppo(**changes):
    return PpoConfig.model_validate({"prompts": {"name": "cafe"}, **changes})


def ragged_experience(dtype):
    """Five responses of different lengths, with random advantages and old log-probabilities."""
    generator = torch.Generator().manual_seed(4)
    rows = []
    for length in LENGTHS:
        ids = torch.randint(5, 30, (2 + length,), generator=generator).tolist()
        rows.append(Example(tuple(ids), (0, 0) + (1,) * length))
    batch = collate(rows, 0)

    def draw():
        values = torch.randn(batch.loss_mask.shape, generator=generator, dtype=torch.float64)
        return values.masked_fill(~batch.loss_mask, 0.0).to(dtype)

    per_response = torch.tensor([1.5, -0.5, 2.0, -1.0, 0.7], dtype=dtype)
    advantages = per_response[:, None] * batch.loss_mask
    return Experience(batch, -3.3 + draw(), advantages, draw(), draw(), -3.3 + draw(), draw().exp())


def gradient(model, objective, micro_batches):
    engine = GradientKeeper(copy.deepcopy(model))
    (report,) = train_steps(engine, objective, [micro_batches])
    return engine.gradients, report.loss


@pytest.fixture(scope="module")
def policy():
    return copy.deepcopy(cases()["supervised"].model).double()


@pytest.mark.parametrize(
    "aggregation", ["token_mean", "sequence_mean", "sequence_sum_mean", "constant_length"]
)
@pytest.mark.parametrize("loss", ["ppo_clip", "cispo"])
def test_the_cut_of_experience_into_micro_batches_changes_no_gradient(policy, loss, aggregation):
    """Families 1 and 3: the KL, the entropy and the correction are in the loss, too."""
    config = ppo(
        policy_loss={"name": loss}, aggregation=aggregation, entropy_coef=0.1, kl_estimator="k3"
    )
    objective = policy_objective_of(config, kl_coef=0.2)
    whole = ragged_experience(torch.float64)
    expected, loss_of_whole = gradient(policy, objective, [whole])
    for cuts in ([[0], [1], [2], [3], [4]], [[3, 0], [4, 2, 1]]):
        pieces = [whole.rows(torch.tensor(cut)) for cut in cuts]
        found, loss_of_pieces = gradient(policy, objective, pieces)
        assert_same_gradients(policy, found, expected)
        assert loss_of_pieces == pytest.approx(loss_of_whole, rel=1e-9)


@pytest.mark.parametrize(
    "loss", [name for name, row in POLICY_LOSSES.items() if row.is_of_sequence]
)
def test_the_cut_of_experience_changes_no_gradient_of_a_ratio_per_response(policy, loss):
    """Family 1, where a whole response enters each token's loss."""
    objective = policy_objective_of(ppo(policy_loss={"name": loss}), kl_coef=0.0)
    whole = ragged_experience(torch.float64)
    expected, _ = gradient(policy, objective, [whole])
    found, _ = gradient(policy, objective, [whole.rows(torch.tensor([i])) for i in range(5)])
    assert_same_gradients(policy, found, expected)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_texts_beside_the_experience_have_their_own_mean_however_both_are_cut(policy, aggregation):
    """Families 1 and 3: loss = policy loss + coef * mean loss of the texts."""
    whole = ragged_experience(torch.float64)
    texts = [Example(tuple(range(5, 5 + n)), (1,) * n) for n in (4, 9, 6)]
    config = ppo(aggregation=aggregation, pretraining_coef=0.3, pretraining_batch_size=3)
    objective = policy_objective_of(config, kl_coef=0.0)
    of_policy, _ = gradient(policy, objective, [whole])
    of_texts, _ = gradient(policy, supervised, [collate(texts, 0)])
    expected = {name: of_policy[name] + 0.3 * of_texts[name] for name in of_policy}
    for budget, cuts in ((8192, [[0, 1, 2, 3, 4]]), (9, [[0, 4], [1, 2], [3]])):
        mix = PretrainingMix(
            texts, config.model_copy(update={"micro_batch_tokens": budget}), pad_id=0
        )
        pieces = [whole.rows(torch.tensor(cut)) for cut in cuts]
        (mixed,) = mix.beside([pieces], first_step=0)
        assert len(mixed) == len(cuts) + (1 if budget > 9 else 3)
        found, _ = gradient(policy, objective, mixed)
        assert_same_gradients(policy, found, expected)


def test_the_kl_in_the_reward_has_the_gradient_of_the_exact_divergence():
    """Family 12: enumerated over a vocabulary of three; k3 there would be biased."""
    logits = torch.tensor([0.3, -0.2, 0.8], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log()
    logprobs = logits.log_softmax(-1)
    exact = torch.autograd.grad(
        (logprobs.exp() * (logprobs - reference)).sum(), logits, retain_graph=True
    )[0]
    old, mask = logprobs.detach(), torch.ones(1, 3, dtype=torch.bool)

    def estimated(estimator):
        advantages = -estimator(old, reference)[None]
        tokens = PolicyTokens(logprobs[None], old[None], advantages, mask)
        losses, _ = ppo_clip(tokens, clip_low=0.2, clip_high=0.2)
        weighted = (old.exp() * losses[0]).sum()
        return torch.autograd.grad(weighted, logits, retain_graph=True)[0]

    torch.testing.assert_close(estimated(k1), exact, rtol=1e-12, atol=1e-14)
    assert float((estimated(k3) - exact).norm()) > 0.1 * float(exact.norm())
    assert ppo().kl_estimator == "k1"
    with pytest.raises(ValidationError, match=r"kl_in: loss with kl_estimator k1 has no effect"):
        ppo(kl_in="loss")
    assert ppo(kl_in="loss", kl_by_ratio=True).kl_by_ratio


@pytest.mark.parametrize("name", ["rloo", "grpo", "dr_grpo", "reinforce_pp_baseline"])
def test_an_advantage_over_a_group_refuses_a_group_of_one(name):
    """Family 25."""
    with pytest.raises(ValidationError, match=rf"advantage '{name}' compares the responses"):
        ppo(advantage={"name": name}, group_size=1)
    assert ppo(advantage={"name": name}, group_size=2).group_size == 2
    for alone in ("gae", "reinforce_pp", "remax"):
        assert ppo(advantage={"name": alone}, group_size=1).group_size == 1


def rollout(tokens, *, is_finished=True):
    prompt = Prompt("1", (), "", (1, 2))
    return Rollout(prompt, tuple(range(5, 5 + tokens)), (-1.0,) * tokens, "", is_finished, 0)


def experience_at(responses, **changes):
    scored = [ScoredRollout(r, reward) for r, reward in responses]
    return experience_of(
        scored, lambda b: b.loss_mask * -1.0, critic=lambda b: b.loss_mask * 0.5, **changes
    )


def test_masked_responses_count_for_nothing():
    """Family 26: the loss with masked responses is that of the others alone."""
    good = [(rollout(4), 3.0), (rollout(2), 1.0)]
    cut = [(rollout(6, is_finished=False), 9.0), (rollout(6, is_finished=False), -9.0)]
    alone = experience_at(good, masks_unfinished=True)
    among = experience_at([cut[0], good[0], cut[1], good[1]], masks_unfinished=True)
    for name in ("old_logprobs", "advantages", "returns", "values"):
        torch.testing.assert_close(getattr(among, name), getattr(alone, name))
    assert torch.equal(among.batch.input_ids, alone.batch.input_ids)
    both = experience_at([cut[0], good[0], cut[1], good[1]])
    assert len(both.advantages) == 4


def test_a_response_that_the_limit_cut_ends_its_episode_or_bootstraps_as_configured():
    """Family 29: the next value after the last token."""
    responses = [(rollout(2), 1.0), (rollout(2, is_finished=False), 1.0)]

    def after_the_end(batch):  # the critic sees a value of 0.8 after both responses
        values = torch.zeros(batch.input_ids.shape)
        values[batch.ends()] = 0.8
        return values

    terminal = experience_at(responses).returns
    torch.testing.assert_close(terminal[0], terminal[1])
    torch.testing.assert_close(terminal[0, 2:], torch.tensor([1.0, 1.0]))
    going_on = experience_at(responses, critic_end=after_the_end).returns
    torch.testing.assert_close(going_on[0, 2:], torch.tensor([1.0, 1.0]))
    torch.testing.assert_close(going_on[1, 2:], torch.tensor([1.8, 1.8]))  # 1 + 0.8
    # one step of GAE with lambda 0: delta = r + V(after) - V
    short = partial(experience_at, estimate=estimate(gamma=1.0, gae_lambda=0.0))
    torch.testing.assert_close(short(responses).returns[1, 3], torch.tensor(1.0))
    found = short(responses, critic_end=after_the_end).returns
    torch.testing.assert_close(found[1, 3], torch.tensor(1.8))
    torch.testing.assert_close(found[0, 3], torch.tensor(1.0))
