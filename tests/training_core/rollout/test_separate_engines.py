"""Engines in processes of their own: as many as wanted, and killed ones are replaced."""

import copy
import os
import signal
from contextlib import nullcontext
from functools import partial
from itertools import islice

import pytest
import torch

from training_core.engine.protocol import DividedModel
from training_core.errors import DataError, MismatchError, TransientError
from training_core.models import hub
from training_core.models.causal_lm import logprobs
from training_core.models.options import LoadOptions, LoraOptions
from training_core.rollout import separate_engines
from training_core.rollout.engine import logprob_gap, sync
from training_core.rollout.engine_spec import EngineSpec
from training_core.rollout.local_engines import LocalHost
from training_core.rollout.sampling import RolloutRequest, Sampling
from training_core.rollout.separate_engines import SeparateEngines
from training_core.rollout.transformers_engine import TransformersEngine
from training_core.rollout.weight_buckets import BUCKET_BYTES
from training_core.rollout.weight_sending import WeightSender

BLOCK_ROWS = 3
SAMPLING = Sampling(12, temperature=0.9)


@pytest.fixture(scope="module")
def spec(make_policy, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    hub.save(make_policy(seed=5), tokenizer, folder)
    return EngineSpec("transformers", folder, tokenizer, torch.float32, "cpu", 96, 0.4)


@pytest.fixture
def policy(spec):
    """Loaded, as a stage does it."""
    return hub.load_policy(spec.directory)


@pytest.fixture
def open_engines(spec):
    """Open engines; `forkserver` has torch imported already."""
    opened = []

    def open_some(
        engines=1, spec=spec, way="memory", bucket_bytes=BUCKET_BYTES, timeout_seconds=60
    ):
        host = LocalHost(engines, silence_seconds=60, start_method="forkserver")
        weights = WeightSender(way, bucket_bytes=bucket_bytes)
        opened.append(SeparateEngines(spec, host, engines, weights=weights, block_rows=BLOCK_ROWS))
        return opened[-1]

    yield open_some
    for engines in opened:
        engines.close()


def moved(policy):
    other = copy.deepcopy(policy)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.5)
    return other


def requests_for(prompts):
    return [
        RolloutRequest(f"r{i}", prompt, SAMPLING, 100 + i) for i, prompt in enumerate(prompts * 2)
    ]


def rollouts_here(policy, tokenizer, prompts, version):
    """What one engine in this process samples from the same blocks of requests."""
    engine = TransformersEngine(policy, tokenizer)
    engine.policy_version = version
    requests = requests_for(prompts)
    for i in range(0, len(requests), BLOCK_ROWS):
        engine.submit(requests[i : i + BLOCK_ROWS])
    return dict(engine.finished())


def kill(engines, number=0):
    os.kill(engines.processes[number].handle.pid, signal.SIGKILL)


@pytest.mark.parametrize("settings", [(1, "memory"), (2, "memory"), (2, "collective")])
def test_any_number_of_engines_samples_the_same_bits_as_one_here(
    open_engines, policy, tokenizer, cafe_prompts, settings
):
    trained = moved(policy)
    count, way = settings
    engines = open_engines(count, way=way, bucket_bytes=1000)  # the embedding alone takes more
    engines.submit(requests_for(cafe_prompts))
    assert dict(engines.finished()) == rollouts_here(policy, tokenizer, cafe_prompts, 0)
    sync(engines, trained, 7)
    engines.submit(requests_for(cafe_prompts))
    assert dict(engines.finished()) == rollouts_here(trained, tokenizer, cafe_prompts, 7)


@pytest.mark.parametrize(
    ("device", "kind"),
    [
        ("cpu", "transformers"),
        pytest.param("cuda", "transformers", marks=pytest.mark.gpu),
        pytest.param("cuda", "vllm", marks=pytest.mark.gpu),
    ],
)
def test_weights_are_broadcast_to_an_engine_by_gloo_or_nccl(
    open_engines, make_policy, tokenizer, cafe_prompts, tmp_path, *, device, kind
):
    """The policy is on the last GPU and the engine on the first one."""
    if device == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("NCCL needs a GPU for the policy and another one for the engine")
    if kind == "vllm":
        pytest.importorskip("vllm", reason="vLLM is not installed")
    start = make_policy(hidden_size=64, num_heads=2, intermediate_size=128)
    hub.save(start, tokenizer, tmp_path)
    place = f"cuda:{torch.cuda.device_count() - 1}" if device == "cuda" else "cpu"
    policy = moved(start).to(place)
    spec = EngineSpec(kind, tmp_path, tokenizer, torch.float32, device, 96, 0.4)
    engines = open_engines(spec=spec, way="collective", bucket_bytes=10_000)
    for version in (1, 2):  # a group of the first sync is used again
        sync(engines, policy, version)
        rollouts = engines.generate(cafe_prompts, Sampling(12), seeds=range(8))
        assert {rollout.policy_version for rollout in rollouts} == {version}
        gap = logprob_gap(rollouts, partial(logprobs, policy), pad_id=tokenizer.pad_token_id)
        assert gap.mean < (1e-4 if device == "cpu" else 0.02)  # vLLM computes in bfloat16 there
        policy = moved(policy.cpu()).to(place)


def test_a_killed_engine_is_replaced_and_nothing_is_lost(
    open_engines, policy, tokenizer, cafe_prompts, caplog
):
    trained = moved(policy)
    engines = open_engines()
    sync(engines, trained, 2)
    old = engines.processes[0].handle.pid
    engines.submit(requests_for(cafe_prompts))
    found = list(islice(engines.finished(), 4))  # the whole first block and one of the second
    kill(engines)
    found += engines.finished()
    assert engines.processes[0].handle.pid != old
    assert len(found) == 16
    assert dict(found) == rollouts_here(trained, tokenizer, cafe_prompts, 2)
    assert "killed by SIGKILL" in caplog.text
    assert "restart 1 of at most 3" in caplog.text
    # Ids are free again, and no late rollout of the first blocks is taken for one of these.
    engines.submit(requests_for(cafe_prompts[::-1]))
    assert dict(engines.finished()) == rollouts_here(trained, tokenizer, cafe_prompts[::-1], 2)


@pytest.mark.parametrize("way", ["memory", "collective"])
def test_an_engine_that_is_killed_before_a_sync_gets_the_new_weights_too(
    open_engines, tokenizer, cafe_prompts, way, caplog
):
    engines = open_engines(2, way=way)
    policy = hub.load_policy(engines.spec.directory)
    trained = moved(policy)
    sync(engines, policy, 1)
    kill(engines, 1)
    sync(engines, trained, 2)
    assert "engine 2 of 2 (transformers) was killed by SIGKILL" in caplog.text
    assert "restart 1 of at most 3" in caplog.text  # also if the other one has to start again
    engines.submit(requests_for(cafe_prompts))
    assert dict(engines.finished()) == rollouts_here(trained, tokenizer, cafe_prompts, 2)


def test_an_engine_that_stops_is_replaced_after_the_limit(
    open_engines, policy, tokenizer, cafe_prompts, caplog
):
    engines = open_engines(2)
    sync(engines, policy, 1)
    os.kill(engines.processes[1].handle.pid, signal.SIGSTOP)
    engines.processes[1].silence_seconds = 0.2
    engines.submit(requests_for(cafe_prompts))
    assert dict(engines.finished()) == rollouts_here(policy, tokenizer, cafe_prompts, 1)
    assert "showed no progress for 0.2 s and was killed; restart 1 of at most 3" in caplog.text


def test_a_sync_that_loses_bytes_is_an_error(open_engines, policy):
    engines = open_engines()
    broken = moved(policy)
    expected = engines.digest_of

    def of_others(weights):
        return expected([(name, tensor + 1) for name, tensor in weights])

    engines.digest_of = of_others
    with pytest.raises(MismatchError, match="weight sync 3: the transformers engine has"):
        sync(engines, broken, 3)


def test_engines_that_die_too_often_end_the_stage_with_their_last_words(
    open_engines, policy, cafe_prompts, monkeypatch
):
    monkeypatch.setattr(separate_engines, "MAX_RESTARTS", 0)
    engines = open_engines()
    engines.submit(requests_for(cafe_prompts))
    kill(engines)
    with pytest.raises(TransientError, match=r"after 0 restarts.*killed by SIGKILL"):
        list(engines.finished())


def test_a_replaced_engine_never_samples_from_weights_of_another_version(
    open_engines, policy, cafe_prompts
):
    trained = moved(policy)
    engines = open_engines()
    sync(engines, trained, 1)
    with torch.no_grad():
        next(trained.parameters()).add_(1)  # the next update has begun
    kill(engines)
    engines.submit(requests_for(cafe_prompts))
    with pytest.raises(TransientError, match="weights of sync 1, and the policy has been trained"):
        list(engines.finished())


def divided(policy, taken):
    """A policy as ZeRO 3 has it, of which every weight that is taken is noted."""

    def weights():
        for name, weight in policy.named_parameters():
            taken.append(name)
            yield name, weight.detach()

    return DividedModel(policy, torch.device("cpu"), weights, lambda: nullcontext(policy))


def test_a_divided_policy_is_gathered_once_for_the_digest_and_once_for_all_engines(
    open_engines, policy, tokenizer, cafe_prompts
):
    trained, taken = moved(policy), []
    engines = open_engines(2)
    sync(engines, divided(trained, taken), 3)
    assert taken == 2 * [name for name, _ in policy.named_parameters()]
    engines.submit(requests_for(cafe_prompts))
    assert dict(engines.finished()) == rollouts_here(trained, tokenizer, cafe_prompts, 3)


@pytest.mark.parametrize("is_synced", [True, False])
def test_one_rank_alone_does_not_send_a_divided_policy_again(
    open_engines, policy, cafe_prompts, is_synced
):
    engines = open_engines()
    if is_synced:
        sync(engines, divided(policy, []), 1)
        engines.submit(requests_for(cafe_prompts))
    kill(engines)
    with pytest.raises(TransientError, match=r"killed by SIGKILL[^~]*The policy is divided among"):
        if is_synced:
            list(engines.finished())
        else:
            sync(engines, divided(policy, []), 1)


def test_an_error_of_the_engine_is_the_stages_error(open_engines, spec, cafe_prompts, tmp_path):
    nowhere = EngineSpec("transformers", tmp_path, *list(vars(spec).values())[2:])
    engines = open_engines(spec=nowhere)
    engines.submit(requests_for(cafe_prompts))
    with pytest.raises(DataError, match=str(tmp_path)):
        list(engines.finished())


def test_an_adapter_is_merged_on_its_way(open_engines, spec, policy, cafe_prompts):
    options = LoadOptions(lora=LoraOptions(rank=2), seed=4)
    adapted = hub.load_policy(spec.directory, options=options)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.normal_(generator=torch.Generator().manual_seed(1))
    engines = open_engines()
    sync(engines, adapted, 1)
    rollouts = engines.generate(cafe_prompts, Sampling(12), seeds=range(8))
    gaps = [
        logprob_gap(rollouts, partial(logprobs, model), pad_id=0) for model in (adapted, policy)
    ]
    assert gaps[0].largest < 1e-4
    assert gaps[1].mean > 0.05
