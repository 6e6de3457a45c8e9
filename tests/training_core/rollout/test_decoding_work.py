"""What the transformers engine computes: each prompt once, and nothing for ended responses."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, MambaConfig

from training_core.rollout.sampling import Sampling
from training_core.rollout.transformers_engine import SEGMENT_TOKENS, TransformersEngine

GROUP = 4


def counted(engine: TransformersEngine) -> list[int]:
    """Gets the number of tokens of each forward pass of the engine's model."""
    sizes: list[int] = []
    engine._model.register_forward_pre_hook(
        lambda _, args, kwargs: sizes.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    return sizes


@pytest.fixture
def group(cafe_prompts):
    """Several rows of one prompt."""
    return [replace(cafe_prompts[0], id=str(number)) for number in range(GROUP)]


def test_the_prompt_of_a_group_is_computed_once(make_policy, tokenizer, group):
    engine = TransformersEngine(make_policy(), tokenizer)
    sizes = counted(engine)
    rollouts = engine.generate(group, Sampling(1), seeds=range(GROUP))
    assert len({r.response_ids for r in rollouts}) > 1
    assert sizes == [len(group[0].input_ids) - 1, GROUP]


def test_responses_that_have_ended_are_computed_no_longer(make_policy, tokenizer, cafe_prompts):
    engine = TransformersEngine(make_policy(), tokenizer)
    sampling = Sampling(5 * SEGMENT_TOKENS, stop_tokens=("tea", "two"))
    sizes = counted(engine)
    rollouts = engine.generate(cafe_prompts, sampling, seeds=range(len(cafe_prompts)))
    lengths = [len(rollout.response_ids) for rollout in rollouts]
    assert min(lengths) < SEGMENT_TOKENS < max(lengths)
    segments = sum(math.ceil(length / SEGMENT_TOKENS) for length in lengths)
    assert sum(sizes[1:]) < SEGMENT_TOKENS * segments < len(rollouts) * max(lengths)


def test_a_row_of_a_group_has_the_response_that_it_has_alone(make_policy, tokenizer, group):
    engine = TransformersEngine(make_policy(), tokenizer)
    sampling = Sampling(3 * SEGMENT_TOKENS)
    together = engine.generate(group, sampling, seeds=range(GROUP))
    alone = [
        engine.generate([prompt], sampling, seeds=[seed])[0] for seed, prompt in enumerate(group)
    ]
    assert [r.response_ids for r in together] == [r.response_ids for r in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_a_recurrent_model_samples_too(tokenizer, group):
    config = MambaConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, state_size=4
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        policy = AutoModelForCausalLM.from_config(config)
    rollouts = TransformersEngine(policy, tokenizer).generate(group, Sampling(20), seeds=range(4))
    assert len({rollout.response_ids for rollout in rollouts}) > 1
