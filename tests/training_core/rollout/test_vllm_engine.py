"""The real vLLM: the same policy as the trainer's, before and after a strong change of weights."""

import copy
import os
import signal

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from training_core.data.batching import collate
from training_core.errors import ConfigError, MismatchError
from training_core.models import hub
from training_core.models.causal_lm import logprobs
from training_core.rollout.choosing import truncation
from training_core.rollout.engine import sync
from training_core.rollout.engine_spec import EngineSpec
from training_core.rollout.local_engines import LocalHost
from training_core.rollout.sampling import RolloutRequest, Sampling
from training_core.rollout.separate_engines import SeparateEngines
from training_core.rollout.transformers_engine import TransformersEngine
from training_core.rollout.vllm_engine import VllmEngine, require_whole_heads, why_not
from training_core.rollout.weight_sending import WeightSender

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


def test_a_model_is_divided_only_between_its_heads(make_policy):
    config = make_policy(hidden_size=64, num_heads=2).config
    require_whole_heads(config, 2)
    with pytest.raises(ConfigError, match="divides the 2 key-value heads of the model, found 4"):
        require_whole_heads(config, 4)


def test_vllm_samples_from_the_trainers_policy_before_and_after_a_strong_change(
    make_policy, tokenizer, cafe_prompts, tmp_path
):
    policy = make_policy(hidden_size=64, num_heads=2, intermediate_size=128)  # head size 32
    assert policy.config.tie_word_embeddings
    policy.generation_config.eos_token_id = list(range(len(tokenizer)))
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
        # with the other end tokens in generation_config.json vLLM would stop at the first word
        assert all(r.is_finished == (tokenizer.eos_token_id in r.response_ids) for r in after)
        assert sum(len(r.response_ids) for r in after) > 4 * len(after)
        # at another temperature the numbers are those of the distribution that was sampled from
        cool = engine.generate(cafe_prompts, Sampling(16, temperature=0.6), seeds=range(8))
        assert largest_gap(trained, cool, temperature=0.6) < 1e-4
        assert largest_gap(trained, cool, temperature=1.0) > 0.1
        assert_wakes_up_in_steps(engine, trained, cafe_prompts, after)
        # an engine that loads nothing is found out
        engine._llm.collective_rpc(_forget_to_load)
        with pytest.raises(MismatchError, match="weight sync 2: the vllm engine has"):
            sync(engine, policy, 2)
    finally:
        engine.close()


def assert_wakes_up_in_steps(engine, policy, prompts, expected):
    """What a GPU frees between two rounds; vLLM's CPU worker takes the same calls."""
    calls = []

    def recorded(name):
        function = getattr(engine._llm, name)

        def call(*arguments, **named):
            calls.append((name, *arguments[: name == "wake_up"]))
            return function(*arguments, **named)

        setattr(engine._llm, name, call)

    for name in ("sleep", "wake_up", "start_weight_update", "finish_weight_update"):
        recorded(name)
    engine._sleeps = True  # as on a GPU
    engine.sleep()
    engine.sleep()
    sync(engine, policy, 1)
    assert calls == [
        ("sleep",),
        ("wake_up", ["weights"]),
        ("start_weight_update",),
        ("finish_weight_update",),
        ("wake_up", ["kv_cache"]),
    ]
    assert engine.generate(prompts, Sampling(16), seeds=range(8)) == expected
    engine.submit([RolloutRequest("r", prompts[0], Sampling(1), 0)])
    with pytest.raises(ValueError, match="expected no unfinished request"):
        engine.sleep()
    assert len(list(engine.finished())) == 1
    engine._sleeps = False


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="vLLM sleeps only on a GPU")
def test_a_sleeping_vllm_frees_its_memory(make_policy, tokenizer, cafe_prompts, tmp_path):
    policy = make_policy(hidden_size=64, num_heads=2, intermediate_size=128)
    hub.save(policy, tokenizer, tmp_path)
    engine = VllmEngine(tmp_path, tokenizer, max_tokens=96, gpu_memory_fraction=0.3, sleeps=True)
    try:
        sync(engine, policy, 1)
        before = engine.generate(cafe_prompts, Sampling(16), seeds=range(8))
        free, total = torch.cuda.mem_get_info()
        engine.sleep()
        assert torch.cuda.mem_get_info()[0] - free > 0.2 * total  # the cache
        sync(engine, policy, 2)
        after = engine.generate(cafe_prompts, Sampling(16), seeds=range(8))
        assert [r.response_ids for r in after] == [r.response_ids for r in before]
    finally:
        engine.close()


def _forget_to_load(worker):
    worker.weight_transfer_engine.receive_weights = lambda _: None


TRUNCATIONS = [
    {"top_p": 0.7},
    {"top_k": 5},
    {"min_p": 0.2},
    {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.05},
]


def truncated_logprobs(policy, rollout, sampling):
    """Log-probabilities of a response's tokens under the truncated distribution."""
    ids = torch.tensor([rollout.prompt.input_ids + rollout.response_ids])
    start = len(rollout.prompt.input_ids)
    with torch.no_grad():
        logits = policy(ids).logits[0, start - 1 : -1].float()
    for step in truncation(sampling):
        logits = step(ids, logits)
    return logits.log_softmax(-1).gather(1, ids[0, start:, None])[:, 0], logits


def test_sampling_parameters_mean_the_same_in_both_engines(
    make_policy, tokenizer, cafe_prompts, tmp_path
):
    policy = make_policy(hidden_size=64, num_heads=2, intermediate_size=128)
    with torch.no_grad():
        policy.model.norm.weight.mul_(8)  # far from uniform, so that truncation removes much
    hub.save(policy, tokenizer, tmp_path)
    slow = TransformersEngine(policy, tokenizer)
    engine = VllmEngine(tmp_path, tokenizer, max_tokens=96)
    try:
        for truncation_settings in TRUNCATIONS:
            sampling = Sampling(16, **truncation_settings)
            for one in (engine, slow):
                removed = 0
                for rollout in one.generate(cafe_prompts, sampling, seeds=range(8)):
                    expected, logits = truncated_logprobs(policy, rollout, sampling)
                    assert list(rollout.logprobs) == pytest.approx(expected.tolist(), abs=1e-4)
                    removed += int(logits.isinf().sum())
                assert removed > 1000  # tokens that were not allowed
        greedy = Sampling(16, temperature=0.0)
        found, expected = (e.generate(cafe_prompts, greedy, seeds=range(8)) for e in (engine, slow))
        assert [r.response_ids for r in found] == [r.response_ids for r in expected]
        assert found[0].logprobs == pytest.approx(expected[0].logprobs, abs=1e-4)
        assert_stops_alike(engine, cafe_prompts)
        # requests of different parameters side by side, and more of them meanwhile
        requests = [
            RolloutRequest(f"r{i}", prompt, (greedy, Sampling(3))[i % 2], i)
            for i, prompt in enumerate(cafe_prompts)
        ]
        engine.submit(requests[:5])
        came = []
        for name, rollout in engine.finished():
            came.append(name)
            if len(came) == 2:
                engine.submit(requests[5:])
            if int(name[1:]) % 2 == 0:
                assert rollout.response_ids == expected[int(name[1:])].response_ids
        assert sorted(came) == [f"r{i}" for i in range(8)]
    finally:
        engine.close()


def assert_stops_alike(engine, prompts):
    """What a stop leaves is the beginning of the response without it."""
    whole = engine.generate(prompts, Sampling(16), seeds=range(8))
    number = max(range(8), key=lambda i: len(whole[i].text.split()))
    words = whole[number].text.split()
    stops = {"stop": (f"{words[2]} {words[3]}",)}, {"stop_tokens": (words[1],)}
    for stop in stops:
        stopped = engine.generate(prompts, Sampling(16, **stop), seeds=range(8))
        for long, short in zip(whole, stopped, strict=True):
            assert long.response_ids[: len(short.response_ids)] == short.response_ids
            assert long.text.startswith(short.text.rstrip())
            assert not any(text in short.text for texts in stop.values() for text in texts)
        assert stopped[number].is_finished
        assert len(stopped[number].response_ids) < len(whole[number].response_ids)


@pytest.mark.slow
def test_a_killed_vllm_in_two_parts_is_replaced_with_the_weights_of_the_last_sync(
    make_policy, tokenizer, cafe_prompts, tmp_path, caplog
):
    policy = make_policy(hidden_size=64, num_heads=2, intermediate_size=128)
    hub.save(policy, tokenizer, tmp_path)
    spec = EngineSpec("vllm", tmp_path, tokenizer, torch.float32, "cpu", 96, 0.4, 2)
    weights = WeightSender("collective", parts=2, bucket_bytes=10_000)
    host = LocalHost(1, silence_seconds=300)
    engines = SeparateEngines(spec, host, weights=weights, block_rows=4)
    try:
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(torch.randn(parameter.shape), alpha=0.3)
        sync(engines, policy, 3)
        before = engines.generate(cafe_prompts, Sampling(16), seeds=range(8))
        os.kill(engines.processes[0].handle.pid, signal.SIGKILL)
        after = engines.generate(cafe_prompts, Sampling(16), seeds=range(8))
        assert [r.response_ids for r in after] == [r.response_ids for r in before]
        assert largest_gap(policy, after) < 1e-4
        assert {r.policy_version for r in after} == {3}
        assert "(vllm) was killed by SIGKILL" in caplog.text
    finally:
        engines.close()


def test_a_tied_gpt2_is_synced_too(tokenizer, cafe_prompts, tmp_path):
    torch.manual_seed(0)
    sizes = {"n_embd": 64, "n_head": 2, "n_layer": 2, "n_positions": 96, "n_inner": 128}
    policy = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), bos_token_id=1, eos_token_id=2, **sizes)
    ).eval()
    hub.save(policy, tokenizer, tmp_path)
    engine = VllmEngine(tmp_path, tokenizer, max_tokens=96)
    try:
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(torch.randn(parameter.shape), alpha=0.3)
        sync(engine, policy, 1)
        rollouts = engine.generate(cafe_prompts, Sampling(16), seeds=range(8))
        assert largest_gap(policy, rollouts) < 1e-4
    finally:
        engine.close()
