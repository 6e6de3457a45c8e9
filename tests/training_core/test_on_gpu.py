"""Half precision, attention kernels and memory of a GPU; the CPU runs the same bodies here."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn

from tests.devices import on_cpu_and_gpu
from tests.training_core.sizes.measuring import TensorBytes, batch_of, model_of, steps_of
from training_core.algorithms.aggregation import AGGREGATIONS
from training_core.algorithms.kl import KL_ESTIMATORS
from training_core.algorithms.policy_losses import ppo_clip
from training_core.data.batching import collate
from training_core.data.layout import collate_packed
from training_core.engine.torch_engine import TorchEngine
from training_core.loop import train_steps
from training_core.models.causal_lm import logprobs, sequence_logprobs
from training_core.models.options import LoadOptions
from training_core.objectives.reinforcement import KlLoss, policy_objective
from training_core.objectives.supervised import supervised
from training_core.sizes.decoder_config import decoder_of
from training_core.sizes.model_use import ModelUse
from training_core.sizes.training_memory import MicroBatchSize, phases
from training_core.types import Batch, Example, Experience

LENGTHS = (9, 30, 17, 24)
STEPS = 8
LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 768,
    "vocab_size": 4096,
}
"""Of a model that is large beside what an allocator rounds up."""


@pytest.fixture
def policy(make_policy):
    return make_policy(hidden_size=64, num_heads=2, intermediate_size=128)


def examples(vocabulary):
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(5, vocabulary, (n,), generator=generator).tolist() for n in LENGTHS]
    return [Example(tuple(row), (0,) * 4 + (1,) * (len(row) - 4)) for row in ids]


@pytest.mark.parametrize(
    ("device", "attention"),
    [
        ("cpu", "sdpa"),
        pytest.param("cuda", "sdpa", marks=pytest.mark.gpu),
        pytest.param("cuda", "flash_attention_2", marks=pytest.mark.gpu),
    ],
)
def test_attention_kernels_in_bfloat16_are_as_near_to_float32_as_eager_attention(
    policy, device, attention
):
    if attention == "flash_attention_2":
        pytest.importorskip("flash_attn", reason="the package flash-attn is not installed")
    rows = examples(policy.config.vocab_size)
    exact = log_likelihoods(policy.float(), "eager", rows, "cpu")
    half = policy.to(torch.bfloat16)
    eager = (log_likelihoods(half, "eager", rows, device) - exact).abs().max()
    found = (log_likelihoods(half, attention, rows, device) - exact).abs().max()
    assert 0 < eager < 0.5  # nats per sequence: rounding of bfloat16, and nothing else
    assert found < 3 * eager + 0.05


def log_likelihoods(policy, attention, rows, device):
    """Sum of each sequence on the CPU; a flash kernel gets all of them in one row."""
    model = copy.deepcopy(policy).to(device)
    model.set_attn_implementation(attention)
    if attention == "flash_attention_2":
        batch = collate_packed([rows], 0, torch.device(device))
    else:
        batch = collate(rows, 0, torch.device(device))
    with torch.no_grad():
        return sequence_logprobs(model, batch).float().cpu()


@on_cpu_and_gpu
@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_a_step_in_bfloat16_is_that_of_float32_within_noise(policy, device, kind):
    rows = examples(policy.config.vocab_size)
    objective, item_on = OBJECTIVES[kind](policy, rows)
    exact, half = policy.float(), copy.deepcopy(policy).to(device, torch.bfloat16)
    expected, found = (
        gradient(exact, objective, item_on("cpu")),
        gradient(half, objective, item_on(device)),
    )
    assert nn.functional.cosine_similarity(found, expected, dim=0) > 0.99
    assert float(found.norm()) == pytest.approx(float(expected.norm()), rel=0.05)

    learned = losses(exact, objective, item_on("cpu"))
    assert losses(half, objective, item_on(device)) == pytest.approx(
        learned, abs=0.1 * (learned[0] - learned[-1])
    )
    assert learned[0] - learned[-1] > 0.1


def supervised_of(policy, rows):
    return supervised, lambda device: collate(rows, 0, torch.device(device))


def reinforcement_of(policy, rows):
    """PPO's clipped loss with a KL, on made-up rollouts that the policy of now has not sampled."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        batch = collate(rows, 0)
        now = logprobs(policy, batch)
    noise = [torch.randn(now.shape, generator=generator) * batch.loss_mask for _ in range(3)]
    objective = policy_objective(
        partial(ppo_clip, clip_low=10.0, clip_high=10.0),  # a clipped token has no gradient
        lambda losses, mask: AGGREGATIONS["token_mean"](losses, mask, 32),
        temperature=1.0,
        kl_loss=KlLoss(KL_ESTIMATORS["k3"], 0.1),
    )

    def item_on(device):
        numbers = [now + 0.05 * noise[0], noise[1], now, now, now + 0.05 * noise[2]]
        on_device = collate(rows, 0, torch.device(device))
        return Experience(on_device, *(tensor.to(device) for tensor in numbers))

    return objective, item_on


OBJECTIVES = {"sft": supervised_of, "rl": reinforcement_of}


def gradient(model, objective, item):
    """The gradient of one micro-batch, as one vector on the CPU."""
    model = copy.deepcopy(model)
    loss = objective(model, item)
    (loss.total / loss.count).backward()
    return torch.cat([p.grad.float().flatten().cpu() for p in model.parameters()])


def losses(model, objective, item):
    """The loss before each of some optimizer steps on one micro-batch."""
    engine = TorchEngine(copy.deepcopy(model), learning_rate=3e-3, schedule=lambda _: 1.0)
    return [report.loss for report in train_steps(engine, objective, [[item]] * STEPS)]


@on_cpu_and_gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_peak_of_training_is_the_estimated_one(device, dtype):
    use = ModelUse(
        decoder_of(LLAMA, "it"), options=LoadOptions(dtype=dtype), is_on_gpu=device == "cuda"
    )
    rows, tokens = 4, 256
    size = MicroBatchSize(rows * tokens, rows * (tokens - 1))
    estimate = max(parts.total for _, parts in phases(use, size))
    measured = PEAKS[device](use, rows, tokens)
    # A GPU's allocator rounds up, and kernels have work space of their own.
    assert measured == pytest.approx(estimate, rel=0.15 if device == "cuda" else 0.05)


def train(device, use, rows, tokens):
    model = model_of(LLAMA, use).to(device)
    engine = TorchEngine(model, learning_rate=1e-4, schedule=lambda _: 1.0)
    batch = batch_of(rows, tokens, LLAMA["vocab_size"])
    tensors = (batch.input_ids, batch.attention_mask, batch.loss_mask)
    steps_of(engine, Batch(*(t.to(device) for t in tensors)), head=use.head)


def peak_of_tensors(use, rows, tokens):
    with TensorBytes() as held:
        train("cpu", use, rows, tokens)
    return held.peak


def peak_of_gpu(use, rows, tokens):
    train("cuda", use, 1, 8)  # libraries allocate their work space once
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    train("cuda", use, rows, tokens)
    return torch.cuda.max_memory_allocated() - before


PEAKS = {"cpu": peak_of_tensors, "cuda": peak_of_gpu}
