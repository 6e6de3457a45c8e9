"""The real vLLM: the same policy as the trainer's, before and after a strong change of weights."""

import copy

import pytest
import torch

from training_core.data.batching import collate
from training_core.models import hub
from training_core.models.causal_lm import logprobs
from training_core.rollout.engine import Sampling, sync
from training_core.rollout.vllm_engine import VllmEngine, why_not

pytest.importorskip("vllm")


def largest_gap(policy, rollouts, temperature=1.0):
    batch = collate([r.example() for r in rollouts], 0)
    with torch.no_grad():
        ours = logprobs(policy, batch, temperature=temperature)[batch.loss_mask]
    theirs = torch.tensor([p for r in rollouts for p in r.logprobs])
    return float((ours - theirs).abs().max())


@pytest.mark.skipif(torch.cuda.is_available(), reason="the head sizes are those of the CPU build")
def test_a_head_size_without_a_kernel_is_refused_by_its_number(make_policy):
    assert "head size 16" in str(why_not(make_policy(hidden_size=32, num_heads=2).config))
    assert why_not(make_policy(hidden_size=64, num_heads=2).config) is None


def test_vllm_samples_from_the_trainers_policy_before_and_after_a_strong_change(
    make_policy, tokenizer, cafe_prompts, tmp_path
):
    policy = make_policy(hidden_size=64, num_heads=2, intermediate_size=128)  # head size 32
    assert policy.config.tie_word_embeddings
    hub.save(policy, tokenizer, tmp_path)
    engine = VllmEngine(tmp_path, tokenizer, max_tokens=96)
    try:
        before = engine.generate(cafe_prompts, Sampling(16), seeds=range(8))
        assert largest_gap(policy, before) < 1e-4
        assert engine.generate(cafe_prompts, Sampling(16), seeds=range(8)) == before
        # a response depends on its own seed, not on its neighbours
        alone = engine.generate(cafe_prompts[3:4], Sampling(16), seeds=[3])
        assert alone[0].response_ids == before[3].response_ids

        trained = copy.deepcopy(policy)
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for parameter in trained.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
        assert largest_gap(trained, before) > 1  # stale weights would be seen
        sync(engine, trained, 1)
        after = engine.generate(cafe_prompts, Sampling(16), seeds=range(8))
        # the tied head too: vLLM 0.32 keeps a repacked copy of the first one on a CPU
        assert largest_gap(trained, after) < 1e-4
        assert {r.policy_version for r in after} == {1}
        assert after != before
        # at another temperature the numbers are those of the distribution that was sampled from
        cool = engine.generate(cafe_prompts, Sampling(16, temperature=0.6), seeds=range(8))
        assert largest_gap(trained, cool, temperature=0.6) < 1e-4
        assert largest_gap(trained, cool, temperature=1.0) > 0.1
    finally:
        engine.close()
