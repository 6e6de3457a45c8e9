"""The slow engine is the trainer's policy, and a stale one is found out."""

import copy
import math
from functools import partial

import pytest
import torch

from tests.tolerances import assert_same_through, operations_through, rounding
from training_core.data.batching import collate
from training_core.errors import MismatchError
from training_core.models.causal_lm import logprobs
from training_core.rollout.engine import (
    LogprobGap,
    Sampling,
    logprob_gap,
    named_weights,
    require_same_policy,
    sync,
)
from training_core.rollout.sampling import RolloutRequest
from training_core.rollout.transformers_engine import TransformersEngine

LIMIT = 0.02


def strongly_changed(policy, seed=7):
    other = copy.deepcopy(policy)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.5)
    return other


def room_of(policy, rollouts):
    """How far rounding can part two log-probabilities of one token."""
    scale = max(abs(p) for rollout in rollouts for p in rollout.logprobs)
    return rounding(torch.float32, operations_through(policy), scale)


def gap_of(policy, rollouts, temperature=1.0):
    return logprob_gap(rollouts, partial(logprobs, policy, temperature=temperature), pad_id=0)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_its_logprobs_are_the_trainers_at_the_sampling_temperature(
    make_policy, tokenizer, cafe_prompts, temperature
):
    policy = strongly_changed(make_policy())
    engine = TransformersEngine(policy, tokenizer)
    rollouts = engine.generate(cafe_prompts, Sampling(12, temperature), seeds=range(8))
    batch = collate([r.example() for r in rollouts], 0)
    with torch.no_grad():
        ours = logprobs(policy, batch, temperature=temperature)[batch.loss_mask]
    theirs = torch.tensor([p for r in rollouts for p in r.logprobs])
    assert_same_through(policy, theirs, ours)
    assert gap_of(policy, rollouts, temperature).largest < room_of(policy, rollouts)
    assert gap_of(policy, rollouts, temperature * 2).mean > 0.1  # another one is not


def test_the_same_seeds_give_the_same_rollouts_and_others_give_others(
    make_policy, tokenizer, cafe_prompts
):
    engine = TransformersEngine(make_policy(), tokenizer)
    torch.manual_seed(0)
    first = engine.generate(cafe_prompts, Sampling(12), seeds=range(8))
    torch.manual_seed(1)  # the global generator has no say
    position = torch.get_rng_state()
    assert engine.generate(cafe_prompts, Sampling(12), seeds=range(8)) == first
    assert torch.equal(torch.get_rng_state(), position)
    assert engine.generate(cafe_prompts, Sampling(12), seeds=range(8, 16)) != first


def test_a_response_depends_on_its_own_seed_and_not_on_its_neighbours(
    make_policy, tokenizer, cafe_prompts
):
    engine = TransformersEngine(make_policy(), tokenizer)
    together = engine.generate(cafe_prompts, Sampling(12), seeds=range(8))
    alone = [engine.generate([p], Sampling(12), seeds=[s])[0] for s, p in enumerate(cafe_prompts)]
    assert [r.response_ids for r in alone] == [r.response_ids for r in together]


def test_greedy_takes_the_most_likely_token(make_policy, tokenizer, cafe_prompts):
    policy = strongly_changed(make_policy())
    engine = TransformersEngine(policy, tokenizer)
    (one,) = engine.generate(cafe_prompts[:1], Sampling(5, temperature=0.0), seeds=[1])
    (other,) = engine.generate(cafe_prompts[:1], Sampling(5, temperature=0.0), seeds=[2])
    assert one == other
    with torch.no_grad():
        logits = policy(torch.tensor([cafe_prompts[0].input_ids])).logits[0, -1]
    assert one.response_ids[0] == int(logits.argmax())
    assert one.logprobs[0] == pytest.approx(
        float(logits.log_softmax(-1).max()), abs=room_of(policy, [one])
    )


def certain_of(policy, token):
    """A copy of `policy` that says `token` with near certainty, always."""
    other = copy.deepcopy(policy)
    head = torch.nn.Linear(16, other.config.vocab_size)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    head.bias.data[token] = 30.0
    other.lm_head = head
    return other


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_tokens_are_drawn_as_often_as_the_policy_says(
    make_policy, tokenizer, cafe_prompts, temperature
):
    policy = certain_of(make_policy(), token=9)
    policy.lm_head.bias.data[10] = 30.0 - 1.0  # one nat less likely, at temperature 1
    engine = TransformersEngine(policy, tokenizer)
    rollouts = engine.generate(
        cafe_prompts[:1] * 1000, Sampling(1, temperature), seeds=range(5000, 6000)
    )
    share = sum(r.response_ids == (9,) for r in rollouts) / 1000
    # sigmoid(1) = 0.731, sigmoid(2) = 0.881; three deviations are 3 * sqrt(0.2 / 1000) = 0.042
    assert share == pytest.approx(1 / (1 + math.exp(-1 / temperature)), abs=0.042)


# Token 9 has e times the probability of token 10, 0.731 and 0.269; all others together have 1e-10.
@pytest.mark.parametrize(
    ("truncation", "kept"),
    [
        ({"top_k": 1}, 1),
        ({"top_k": 2}, 2),
        ({"top_p": 0.73}, 1),
        ({"top_p": 0.74}, 2),
        ({"min_p": 0.37}, 1),  # exp(-1) = 0.368
        ({"min_p": 0.36}, 2),
        # 0.269 is left of 10 for top_p = 0.74, so both stay, unless min_p removes 10 before
        ({"top_p": 0.74, "min_p": 0.37}, 1),
        ({"top_k": 1, "top_p": 0.99}, 1),
        ({"top_p": 0.85, "temperature": 0.5}, 1),  # sigmoid(2) = 0.881
        ({"top_p": 0.89, "temperature": 0.5}, 2),
    ],
    ids=str,
)
def test_truncation_leaves_the_likely_tokens_and_renormalises(
    make_policy, tokenizer, cafe_prompts, truncation, kept
):
    policy = certain_of(make_policy(), token=9)
    policy.lm_head.bias.data[10] = 30.0 - 1.0
    engine = TransformersEngine(policy, tokenizer)
    sampling = Sampling(4, **truncation)
    rollouts = engine.generate(cafe_prompts, sampling, seeds=range(8))
    drawn = {(i, p) for r in rollouts for i, p in zip(r.response_ids, r.logprobs, strict=True)}
    assert {token for token, _ in drawn} == {9, 10} if kept == 2 else {9}
    odds = 1 / sampling.temperature
    expected = {9: -math.log1p(math.exp(-odds)), 10: -math.log1p(math.exp(odds))}
    for token, logprob in drawn:
        assert logprob == pytest.approx(expected[token] if kept == 2 else 0.0, abs=1e-5)


def test_a_stop_string_ends_only_its_own_row(make_policy, tokenizer, cafe_prompts):
    engine = TransformersEngine(strongly_changed(make_policy()), tokenizer)
    whole = engine.generate(cafe_prompts, Sampling(12), seeds=range(8))
    word = whole[0].text.split()[3]
    stopped = engine.generate(cafe_prompts, Sampling(12, stop=(word,)), seeds=range(8))
    for long, short in zip(whole, stopped, strict=True):
        assert short.text == long.text.split(word)[0]
        assert short.response_ids == long.response_ids[: len(short.response_ids)]
        assert short.logprobs == pytest.approx(long.logprobs[: len(short.logprobs)], abs=1e-4)
    assert sum(len(r.response_ids) for r in stopped) < sum(len(r.response_ids) for r in whole)


def test_rollouts_come_one_by_one_and_more_can_be_asked_for_meanwhile(
    make_policy, tokenizer, cafe_prompts
):
    engine = TransformersEngine(make_policy(), tokenizer)
    expected = engine.generate(cafe_prompts, Sampling(6), seeds=range(8))
    requests = [RolloutRequest(f"r{i}", p, Sampling(6), i) for i, p in enumerate(cafe_prompts)]
    engine.submit(requests[:3])
    found = []
    for found_first in engine.finished():
        found.append(found_first)
        break  # the caller may stop and come back
    engine.submit(requests[3:5])
    for name, rollout in engine.finished():
        found.append((name, rollout))
        if name == "r4":
            engine.submit(requests[5:])
    assert sorted(name for name, _ in found) == [f"r{i}" for i in range(8)]
    for name, rollout in found:
        assert rollout.response_ids == expected[int(name[1:])].response_ids


def test_an_id_is_used_once_and_weights_change_only_between_rollouts(
    make_policy, tokenizer, cafe_prompts
):
    policy = make_policy()
    engine = TransformersEngine(policy, tokenizer)
    request = RolloutRequest("r", cafe_prompts[0], Sampling(2), 0)
    engine.submit([request])
    with pytest.raises(ValueError, match="new request id, found 'r'"):
        engine.submit([request])
    with pytest.raises(ValueError, match="no unfinished request at weight sync 4, found 1"):
        engine.load_weights(policy, 4)
    assert [name for name, _ in engine.finished()] == ["r"]
    engine.load_weights(policy, 4)


def test_a_response_ends_with_its_end_token_and_knows_it(make_policy, tokenizer, cafe_prompts):
    policy = certain_of(make_policy(), tokenizer.eos_token_id)
    (rollout,) = TransformersEngine(policy, tokenizer).generate(
        cafe_prompts[:1], Sampling(6), seeds=[0]
    )
    assert rollout.response_ids == (tokenizer.eos_token_id,)
    assert len(rollout.logprobs) == 1
    assert rollout.is_finished
    assert rollout.text == ""


def test_a_response_that_was_cut_is_not_finished(make_policy, tokenizer, cafe_prompts):
    token = tokenizer.convert_tokens_to_ids("tea")
    policy = certain_of(make_policy(), token)
    (rollout,) = TransformersEngine(policy, tokenizer).generate(
        cafe_prompts[:1], Sampling(3), seeds=[0]
    )
    assert rollout.response_ids == (token,) * 3
    assert not rollout.is_finished
    assert rollout.text == "tea tea tea"


def test_after_a_sync_the_engine_is_the_new_policy(make_policy, tokenizer, cafe_prompts):
    policy = make_policy()
    engine = TransformersEngine(policy, tokenizer)
    trained = strongly_changed(policy)
    sync(engine, trained, 3)
    rollouts = engine.generate(cafe_prompts, Sampling(12), seeds=range(8))
    assert {r.policy_version for r in rollouts} == {3}
    gap = gap_of(trained, rollouts)
    assert gap.mean < room_of(trained, rollouts)
    require_same_policy(gap, limit=LIMIT, engine=engine)


def test_without_a_sync_the_engine_is_found_out(make_policy, tokenizer, cafe_prompts):
    policy = make_policy()
    engine = TransformersEngine(policy, tokenizer)
    rollouts = engine.generate(cafe_prompts, Sampling(12), seeds=range(8))
    gap = gap_of(strongly_changed(policy), rollouts)
    assert gap.mean > 0.5
    with pytest.raises(MismatchError, match=r"weight sync 0 .* transformers engine.* 0\.02"):
        require_same_policy(gap, limit=LIMIT, engine=engine)


def test_training_the_policy_does_not_move_the_engine(make_policy, tokenizer, cafe_prompts):
    policy = make_policy()
    engine = TransformersEngine(policy, tokenizer)
    before = engine.generate(cafe_prompts, Sampling(6), seeds=range(8))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
    assert engine.generate(cafe_prompts, Sampling(6), seeds=range(8)) == before


class LossyEngine(TransformersEngine):
    """Loses the last layer on the way."""

    def load_weights(self, policy, version):
        broken = copy.deepcopy(policy)
        with torch.no_grad():
            list(broken.parameters())[-1].zero_()
        return super().load_weights(broken, version)


def test_a_sync_that_loses_bytes_is_an_error(make_policy, tokenizer):
    policy = make_policy()
    with pytest.raises(MismatchError, match="weight sync 2: the transformers engine has"):
        sync(LossyEngine(policy, tokenizer), policy, 2)


def test_a_nan_gap_is_not_let_through(make_policy, tokenizer):
    engine = TransformersEngine(make_policy(), tokenizer)
    with pytest.raises(MismatchError):
        require_same_policy(LogprobGap(float("nan"), float("nan")), limit=LIMIT, engine=engine)


def test_tied_weights_are_sent_once(make_policy):
    names = [name for name, _ in named_weights(make_policy())]
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names
    assert len(set(names)) == len(names)
