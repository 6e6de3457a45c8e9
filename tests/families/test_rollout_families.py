"""Silent bugs between sampling and training, one test per family that had no guard yet."""

import copy
from functools import partial

import pytest
import torch
from pydantic import ValidationError

from stages.configs.preference_pairs_config import PreferencePairsConfig
from stages.configs.rejection_sampling_config import RejectionSamplingConfig
from stages.reinforcement.learners import critic_values, policy_logprobs
from tests.rounds import estimate, experience_of, held
from tests.tolerances import assert_same_through
from training_core.data.batching import collate
from training_core.data.chat import encode_responses
from training_core.models.causal_lm import logprobs
from training_core.rollout.engine import Sampling
from training_core.rollout.transformers_engine import TransformersEngine
from training_core.types import Rollout, ScoredRollout


def sharpened(policy, factor=8.0):
    """A copy whose distribution is far from uniform, so that truncation would be seen."""
    other = copy.deepcopy(policy)
    with torch.no_grad():
        other.model.norm.weight.mul_(factor)
    return other


@pytest.mark.parametrize(
    "habits",
    [
        {"repetition_penalty": 5.0},
        {"no_repeat_ngram_size": 1},
        {"suppress_tokens": [7, 8, 9, 10, 11, 12]},
        {"min_new_tokens": 5},
        {"do_sample": True, "top_k": 1},
        {"do_sample": True, "top_p": 0.1},
        {"do_sample": True, "temperature": 0.1},
    ],
    ids=lambda habits: next(reversed(habits)),
)
def test_a_models_own_generation_settings_never_bend_the_sampled_distribution(
    make_policy, tokenizer, cafe_prompts, habits
):
    """Family 7: many hub models bring top-p, top-k or penalties in generation_config.json."""
    policy = sharpened(make_policy())
    plain = TransformersEngine(policy, tokenizer)
    expected = plain.generate(cafe_prompts, Sampling(12), seeds=range(8))
    for name, value in habits.items():
        setattr(policy.generation_config, name, value)
    found = TransformersEngine(policy, tokenizer).generate(
        cafe_prompts, Sampling(12), seeds=range(8)
    )
    assert [r.response_ids for r in found] == [r.response_ids for r in expected]
    assert all(getattr(policy.generation_config, n) == v for n, v in habits.items())  # exported


def test_an_unlikely_token_is_recorded_with_its_own_log_probability(
    make_policy, tokenizer, cafe_prompts
):
    """Family 8: not with the log-probability of the most likely token."""
    policy = sharpened(make_policy(), factor=4.0)
    rollouts = TransformersEngine(policy, tokenizer).generate(
        cafe_prompts * 8, Sampling(6), seeds=range(64)
    )
    unlikely = 0
    for rollout in rollouts:
        ids = torch.tensor([rollout.prompt.input_ids + rollout.response_ids])
        with torch.no_grad():
            table = policy(ids).logits[0].log_softmax(-1)
        for place, (token, recorded) in enumerate(
            zip(rollout.response_ids, rollout.logprobs, strict=True)
        ):
            row = table[len(rollout.prompt.input_ids) + place - 1]
            assert recorded == pytest.approx(float(row[token]), abs=1e-4)
            unlikely += float(row[token]) < float(row.max()) - 1.0
    assert unlikely > 20  # a nat below the most likely one: the two could be told apart


def test_the_ids_that_were_sampled_are_the_ids_that_are_trained(tokenizer, cafe_prompts):
    """Family 21: text is never tokenised again on the way from the sampler to the loss."""
    prompt = cafe_prompts[0]
    tea, unknown = tokenizer.convert_tokens_to_ids(["tea", "<unk>"])
    ids = (tea, unknown, unknown, tea, tokenizer.eos_token_id)  # no text gives these ids
    text = tokenizer.decode(ids, skip_special_tokens=True)
    (again,) = encode_responses(tokenizer, [prompt], [text], max_tokens=99, is_finished=[True])
    assert again is not None
    assert again.input_ids[-len(ids) :] != ids  # so tokenising again would be seen
    rollout = Rollout(prompt, ids, (-1.0,) * 5, text, True, 0)
    experience = experience_of(
        [ScoredRollout(rollout, 1.0)],
        policy=lambda b: b.loss_mask * -1.0,
        reference=lambda b: b.loss_mask * -1.0,
        critic=lambda b: b.loss_mask * 0.0,
        kl_coef=0.1,
    )
    batch = experience.batch
    assert tuple(batch.input_ids[batch.loss_mask].tolist()) == ids
    assert tuple(batch.input_ids[batch.attention_mask].tolist()) == prompt.input_ids + ids


@pytest.mark.parametrize("config", [RejectionSamplingConfig, PreferencePairsConfig])
def test_a_group_of_one_is_refused_where_responses_are_compared(config):
    """Family 25: one response has nothing to be better than."""
    prompts = {"name": "cafe", "size": 4}
    with pytest.raises(ValidationError, match="group_size"):
        config.model_validate({"prompts": prompts, "group_size": 1})
    assert config.model_validate({"prompts": prompts, "group_size": 2}).group_size == 2


def test_the_sampling_temperature_moves_log_probabilities_and_no_value(
    make_policy, make_scalar_model, tokenizer, cafe_prompts
):
    """Family 27: the critic has no temperature; family 6: the policy has."""
    policy, critic = sharpened(make_policy()), make_scalar_model()
    rollouts = TransformersEngine(policy, tokenizer).generate(
        cafe_prompts, Sampling(6), seeds=range(8)
    )
    experience_at = partial(
        experience_of,
        [ScoredRollout(r, float(i % 3)) for i, r in enumerate(rollouts)],
        reference=policy_logprobs(held(policy), 1.0, 512),
        critic=critic_values(held(critic), 512),
        estimate=estimate(gamma=1.0, gae_lambda=0.95),
    )
    cold, hot = (experience_at(policy=policy_logprobs(held(policy), t, 512)) for t in (0.5, 2.0))
    assert torch.equal(cold.values, hot.values)
    assert torch.equal(cold.returns, hot.returns)
    assert float((cold.old_logprobs - hot.old_logprobs).abs().max()) > 0.1
    batch = collate([r.example() for r in rollouts], 0)
    with torch.no_grad():
        expected = logprobs(policy, batch, temperature=0.5)
    assert_same_through(policy, cold.old_logprobs, expected)
