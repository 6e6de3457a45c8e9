"""Frozen models that two processes share: the numbers of whole models, in half of the memory."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path

import pytest
import torch

from stages.configs.sampling_config import RolloutConfig
from stages.reinforcement.all_ranks import RewardOfAllRanks
from stages.reinforcement.learners import policy_logprobs
from stages.sampling.rollouts import open_engine
from tests.rounds import held
from tests.training_core.two_processes import (
    LENGTHS,
    micro_batches,
    scalar_model,
    tiny_llama,
    together,
)
from training_core.data.batching import collate
from training_core.dist_info import SINGLE_PROCESS, DistInfo
from training_core.errors import ConfigError
from training_core.models import hub
from training_core.models.causal_lm import logprobs
from training_core.models.offloading import FrozenWeights
from training_core.models.scalar_head import sequence_scores
from training_core.models.sharding import shard
from training_core.rewards.model_reward import RewardModelReward
from training_core.rollout.engine import named_weights
from training_core.types import Example, Prompt, Rollout

CPU = torch.device("cpu")
ROWS = 3
"""Odd, so that two ranks have unequal shares."""


def batch_of(rows=ROWS):
    generator = torch.Generator().manual_seed(7)
    lengths = (9, 4, 6)[:rows]
    ids = [tuple(torch.randint(5, 40, (n,), generator=generator).tolist()) for n in lengths]
    return collate([Example(each, (0,) + (1,) * (len(each) - 1)) for each in ids], 0)


MODELS = {
    "policy": (tiny_llama, partial(logprobs, temperature=0.7)),
    "policy in half": (partial(tiny_llama, torch.bfloat16), logprobs),
    "reward model in half": (partial(scalar_model, torch.bfloat16), sequence_scores),
}


def held_bytes(model):
    local = (getattr(p, "to_local", lambda p=p: p)() for p in model.parameters())
    return sum(part.untyped_storage().nbytes() for part in local)


def compared(ranks):
    """For each model: the values whole and divided, the held bytes, and the gathered weights."""
    found = {}
    for name, (make, function) in MODELS.items():
        model = hub.freeze(make().eval())
        whole = held(copy.deepcopy(model))
        weights = FrozenWeights(model, CPU, divided_by=ranks)
        values = []
        for each in (whole, weights):
            with each.at_work():
                values.append([each.compute(function, b) for b in (*micro_batches(1), batch_of())])
        sent = {name: weight.clone() for name, weight in named_weights(model)}
        found[name] = (*values, held_bytes(whole.model), held_bytes(model), sent)
    return found


def offloaded_by_one(ranks):
    """A process that has only one layer at a time on its device, here the same CPU."""
    model = tiny_llama().eval().requires_grad_(False)
    asked = shard(copy.deepcopy(model), CPU, ranks, offload=True)
    with pytest.raises(ConfigError, match=r"frozen_models\.shard keeps a part"):
        open_engine(RolloutConfig(engine="transformers"), Path(), asked.model, None)
    with torch.no_grad():
        return logprobs(model, batch_of()), asked(logprobs, batch_of())


def unequal(ranks, rows):
    """Log-probabilities of rows of which one rank has more than the other, or all."""
    model = hub.freeze(tiny_llama().eval())
    weights = FrozenWeights(model, CPU, divided_by=ranks)
    return policy_logprobs(weights, 1.0, 8, ranks)(batch_of(rows))


def rewards(ranks, folder, numbers, *, divided):
    """Rewards of some rollouts, in micro-batches of one."""
    divided_by = ranks if divided else None
    reward = RewardModelReward(folder, normalise=False, micro_batch_tokens=8, divided_by=divided_by)
    shared = RewardOfAllRanks(reward, ranks, needs_all_ranks=divided)
    return [shared(rollouts(n)) for n in numbers]


def rollouts(number):
    prompt = Prompt("1", ({"role": "user", "content": "tea ."},), "tea .", (5, 6), {})
    texts = ("here are two tea .", "tea .", "two", "here are tea", ". .")
    return [Rollout(prompt, (7, 8), (-1.0, -1.0), text, False, 0) for text in texts[:number]]


def on_two(ranks, folder):
    return {
        "compared": compared(ranks),
        "unequal": {rows: unequal(ranks, rows) for rows in (1, ROWS)},
        "rewards": rewards(ranks, folder, (1, 0, 5), divided=True),
    }


@pytest.fixture(scope="module")
def folder(make_scalar_model, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reward-model")
    hub.save(make_scalar_model(), tokenizer, folder)
    return folder


@pytest.fixture(scope="module")
def two(folder, tmp_path_factory):
    return together(2, tmp_path_factory.mktemp("two"), on_two, folder)


@pytest.mark.parametrize("name", MODELS)
def test_a_divided_model_computes_what_the_whole_one_does(two, name):
    for rank in two:
        whole, divided, *_ = rank["compared"][name]
        assert len(divided) == len(LENGTHS[1]) + 1
        for ours, theirs in zip(divided, whole, strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", MODELS)
def test_each_of_two_ranks_holds_half_of_the_weights(two, name):
    for rank in two:
        *_, whole, divided, _ = rank["compared"][name]
        assert whole / 2 <= divided <= 0.51 * whole


def test_an_engine_can_take_the_weights_of_a_divided_model(two):
    expected = dict(named_weights(tiny_llama()))
    for rank in two:
        *_, sent = rank["compared"]["policy"]
        assert sent.keys() == expected.keys()
        assert all(torch.equal(sent[name], weight) for name, weight in expected.items())


@pytest.mark.parametrize("rows", [1, ROWS])
def test_ranks_with_unequal_shares_compute_equally_often(two, rows):
    expected = policy_logprobs(held(tiny_llama().eval()), 1.0, 8)(batch_of(rows))
    for rank in two:
        torch.testing.assert_close(rank["unequal"][rows], expected)


def test_a_divided_reward_model_scores_any_number_of_rollouts(two, folder):
    expected = rewards(SINGLE_PROCESS, folder, (1, 0, 5), divided=False)
    assert [len(found) for found in expected] == [1, 0, 5]
    assert len(set(expected[2])) > 1
    for rank in two:
        for ours, theirs in zip(rank["rewards"], expected, strict=True):
            assert ours == pytest.approx(theirs, abs=1e-6)


def test_one_process_can_move_one_layer_at_a_time(tmp_path):
    ((whole, divided),) = together(1, tmp_path, offloaded_by_one)
    torch.testing.assert_close(divided, whole)


def test_one_process_that_offloads_nothing_has_nothing_to_gather():
    weights = FrozenWeights(hub.freeze(tiny_llama().eval()), CPU, divided_by=DistInfo())
    assert not weights.computes_together
    assert {type(p) for p in weights.model.parameters()} == {torch.nn.Parameter}
