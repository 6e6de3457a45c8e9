"""Memory of training: parts by hand, and the largest phase against what torch really holds."""

from __future__ import annotations

import pytest
import torch

from tests.training_core.sizes.measuring import TensorBytes, measured_peak, model_of
from tests.training_core.sizes.published_shapes import LLAMA_3_8B, SMALL
from training_core.engine.optimizers import hidden_matrices
from training_core.models.options import LoadOptions, LoraOptions
from training_core.sizes.decoder_config import decoder_of
from training_core.sizes.model_use import ModelUse, Sharding, elements_of
from training_core.sizes.training_memory import BUCKET, LIVE, MicroBatchSize, phases, resting

N = 8_030_261_248
LARGEST = 128256 * 4096
BF16 = LoadOptions(dtype="bfloat16")
EIGHT_B = decoder_of(LLAMA_3_8B, "it")


def largest(use, batch):
    return max((parts for _, parts in phases(use, batch)), key=lambda parts: parts.total)


def test_plain_torch_holds_weights_and_moments_and_masters_only_of_half_precision():
    single = resting(ModelUse(EIGHT_B))
    assert (single.weights, single.optimizer) == (4 * N, 8 * N)
    half = resting(ModelUse(EIGHT_B, options=BF16))
    assert (half.weights, half.optimizer) == (2 * N, (4 + 8) * N)
    assert resting(ModelUse(EIGHT_B, optimizer=None, options=BF16)).total == 2 * N


@pytest.mark.parametrize(
    ("stage", "weights", "optimizer", "gradients"),
    [
        (1, 2 * N, 12 * N / 8, 4 * N + 4 * BUCKET),
        (2, 2 * N, 12 * N / 8, 4 * N / 8 + 6 * BUCKET + 6 * LARGEST),
        (3, 2 * N / 8, 12 * N / 8, 4 * N / 8 + 8 * BUCKET + 6 * LARGEST),
    ],
)
def test_zero_divides_more_with_each_stage(stage, weights, optimizer, gradients):
    use = ModelUse(EIGHT_B, options=BF16, sharding=Sharding(workers=8, zero_stage=stage))
    rest = resting(use)
    assert (rest.weights, rest.optimizer) == pytest.approx((weights, optimizer))
    backward = dict(phases(use, MicroBatchSize(1, 1)))["backward pass"]
    assert backward.gradients == pytest.approx(gradients)
    gathered = 2 * (LIVE + LARGEST) if stage == 3 else 0
    assert backward.weights == pytest.approx(weights + gathered)


def test_zero_3_holds_gradients_and_their_buffer_between_steps_too():
    rest = resting(ModelUse(EIGHT_B, options=BF16, sharding=Sharding(8, 3)))
    assert rest.gradients == pytest.approx(4 * N / 8 + 4 * BUCKET)
    assert resting(ModelUse(EIGHT_B, options=BF16, sharding=Sharding(8, 2))).gradients == 0


def test_offloaded_state_is_in_cpu_memory():
    sharding = Sharding(8, 3, offload_optimizer=True, offload_parameters=True)
    rest = resting(ModelUse(EIGHT_B, options=BF16, sharding=sharding))
    assert (rest.weights, rest.optimizer, rest.gradients) == (0, 0, 4 * BUCKET)
    assert rest.host == pytest.approx((2 + 4 + 12) * N / 8)


def test_whole_weights_stand_beside_the_divided_ones_under_deepspeed():
    use = ModelUse(EIGHT_B, options=BF16, sharding=Sharding(8, 3))
    whole = dict(phases(use, MicroBatchSize(1, 1)))["whole weights"]
    assert whole.weights == pytest.approx(resting(use).weights + 2 * N)
    assert "whole weights" not in dict(phases(ModelUse(EIGHT_B), MicroBatchSize(1, 1)))


def test_tensor_parallelism_divides_matrices_but_not_embeddings():
    half = elements_of(ModelUse(EIGHT_B, sharding=Sharding(2, 2, tensor_parallel_size=2)))
    matrices = 32 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336)
    assert half.trained == N - matrices / 2
    assert half.weight_bytes == 4 * half.trained


def test_four_bits_pack_the_matrices_of_the_layers():
    lora = LoadOptions(dtype="bfloat16", lora=LoraOptions(rank=16, load_in_4bit=True))
    found = elements_of(ModelUse(EIGHT_B, options=lora))
    # 16 * (inputs + outputs) of 7 matrices: q, k, v, o, gate, up, down
    widths = 2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336)
    assert found.trained == 32 * 16 * widths
    matrices = 32 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336)
    bits = 8 * (found.weight_bytes - 2 * (N - matrices) - 4 * found.trained) / matrices
    assert bits == pytest.approx(4.127)


CONFIG = {"model_type": "llama", **SMALL}
OPTIONS = {
    "all": LoadOptions(),
    "some frozen": LoadOptions(frozen=("model.embed_tokens.*", "model.layers.[01].*")),
    "adapter": LoadOptions(lora=LoraOptions(rank=3)),
    "adapter on some": LoadOptions(lora=LoraOptions(rank=3, target_modules=("q_proj", "up_proj"))),
}


@pytest.mark.parametrize("head", ["lm_head", "score"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_trained_parameters_are_those_of_a_prepared_model(options, head):
    use = ModelUse(decoder_of(CONFIG, "it"), head, options)
    model = model_of(CONFIG, use)
    trained = [p for p in model.parameters() if p.requires_grad]
    found = elements_of(use)
    assert found.trained == sum(p.numel() for p in trained)
    assert found.largest == max(p.numel() for p in trained)
    assert found.matrices == sum(p.numel() for p in hidden_matrices(model))
    assert found.weight_bytes == sum(p.numel() * p.itemsize for p in model.parameters())


WIDE = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 768,
    "vocab_size": 4096,
}
CASES = {
    "float32": (LoadOptions(), "lm_head", "adamw"),
    "bfloat16": (BF16, "lm_head", "adamw"),
    "checkpointing": (LoadOptions(gradient_checkpointing=True), "lm_head", "adamw"),
    "bfloat16 and checkpointing": (
        LoadOptions(dtype="bfloat16", gradient_checkpointing=True),
        "lm_head",
        "adamw",
    ),
    "reward model": (LoadOptions(), "score", "adamw"),
    "muon": (LoadOptions(), "lm_head", "muon"),
    "adapter": (LoadOptions(lora=LoraOptions(rank=8)), "lm_head", "adamw"),
    "adapter and bfloat16": (
        LoadOptions(dtype="bfloat16", lora=LoraOptions(rank=8)),
        "lm_head",
        "adamw",
    ),
}


@pytest.mark.parametrize("tokens", [32, 256], ids=["mostly weights", "mostly activations"])
@pytest.mark.parametrize(("options", "head", "optimizer"), CASES.values(), ids=CASES)
def test_the_estimate_is_near_the_peak_of_real_steps(options, head, optimizer, tokens):
    use = ModelUse(decoder_of(WIDE, "it"), head, options, optimizer, is_on_gpu=False)
    measured = measured_peak(WIDE, use, rows=4, tokens=tokens)
    estimate = largest(use, MicroBatchSize(4 * tokens, 4 * (tokens - 1))).total
    assert estimate == pytest.approx(measured, rel=0.08)


def test_a_mask_widens_keys_and_values_and_is_saved_by_each_layer():
    fields = {**WIDE, "num_key_value_heads": 2}
    use = ModelUse(decoder_of(fields, "it"), is_on_gpu=False)
    for has_mask in (False, True):
        measured = measured_peak(fields, use, rows=2, tokens=256, has_mask=has_mask)
        estimate = largest(use, MicroBatchSize(512, 510, mask_width=256 * has_mask)).total
        assert estimate == pytest.approx(measured, rel=0.02)


def test_tensors_are_counted_while_they_are_alive():
    with TensorBytes() as held:
        kept = torch.zeros(1000)
        torch.zeros(5000).sum()
        kept.view(10, 100)  # no memory of its own
    assert held.peak == 4 * (1000 + 5000 + 1)
    assert held.now == 4 * 1000
