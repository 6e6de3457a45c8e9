"""A response whose text is given away piece by piece."""

from __future__ import annotations

import pytest
from transformers import GenerationConfig

from training_core.rollout.sampling import Sampling
from training_core.rollout.streaming import StreamingPolicy
from training_core.rollout.transformers_engine import TransformersEngine


@pytest.mark.parametrize("sampling", [Sampling(12), Sampling(12, 0.7, 0.9, 20), Sampling(12, 0)])
def test_it_is_the_response_of_the_engine_in_several_pieces(
    make_policy, tokenizer, cafe_prompts, sampling
):
    policy = make_policy(seed=4)
    (expected,) = TransformersEngine(policy, tokenizer).generate(
        cafe_prompts[:1], sampling, seeds=[5]
    )
    policy.generation_config = GenerationConfig(repetition_penalty=9.0, max_new_tokens=1)
    pieces: list[str] = []
    found = StreamingPolicy(policy, tokenizer).respond(
        cafe_prompts[0], sampling, seed=5, on_text=pieces.append
    )
    assert found.response_ids == expected.response_ids
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
    assert found.text == expected.text
    assert "".join(pieces).strip() == expected.text.strip()
    assert len(pieces) >= len(expected.text.split()) - 1  # a word is given away when it is whole
    assert bool(expected.text) == (sampling.temperature > 0)  # the likeliest is to end at once
