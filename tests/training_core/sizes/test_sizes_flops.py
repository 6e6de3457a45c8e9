"""FLOPs: by hand at the shapes of Llama 3 8B, and against torch's counter in a small model."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.training_core.sizes.measuring import batch_of, model_of
from tests.training_core.sizes.published_shapes import LLAMA_3_8B, SMALL
from training_core.algorithms.logprobs import token_logprobs
from training_core.models.causal_lm import hidden_states, predicting
from training_core.models.options import LoadOptions
from training_core.models.parts import output_head
from training_core.sizes.decoder_config import decoder_of
from training_core.sizes.flops import Sequence, forward, training
from training_core.sizes.model_use import ModelUse

CONFIG = {"model_type": "llama", **SMALL}
TOKENS = 40
SEQUENCE = Sequence(TOKENS, TOKENS - 1)


def counted(options, *, with_gradient):
    """FLOPs of one row, as torch counts them; eager attention computes all scores."""
    model = model_of(CONFIG, ModelUse(decoder_of(CONFIG, "it"), options=options))
    batch = batch_of(1, TOKENS, SMALL["vocab_size"])
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(with_gradient):
        hidden = hidden_states(model, batch).flatten(0, 1)[predicting(batch)]
        targets = batch.input_ids[batch.loss_mask]
        logprobs, _ = token_logprobs(hidden, output_head(model), targets, keep_mib=0)
        if with_gradient:
            logprobs.sum().backward()
    return counter.get_total_flops()


def upper_half(decoder):
    """FLOPs of the scores that causal attention does not need: n^2 - n (n + 1) / 2 pairs."""
    return 4 * decoder.layers * decoder.q_width * (TOKENS**2 - TOKENS * (TOKENS + 1) / 2)


def test_a_forward_pass_has_the_flops_that_torch_counts():
    decoder = decoder_of(CONFIG, "it")
    expected = counted(LoadOptions(attention="eager"), with_gradient=False)
    assert forward(decoder, SEQUENCE) + upper_half(decoder) == expected


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_training_step_has_the_flops_that_torch_counts(is_checkpointed):
    decoder = decoder_of(CONFIG, "it")
    options = LoadOptions(attention="eager", gradient_checkpointing=is_checkpointed)
    estimate = training(decoder, SEQUENCE, is_checkpointed=is_checkpointed)
    passes = 3 + is_checkpointed
    unseen = 2 * SMALL["vocab_size"] * SMALL["hidden_size"] * (TOKENS - 1)  # `addmm_`, in place
    expected = counted(options, with_gradient=True) + unseen
    assert estimate + passes * upper_half(decoder) == expected


def test_the_known_rule_of_six_flops_per_parameter_and_token():
    decoder = decoder_of(LLAMA_3_8B, "it")
    found = training(decoder, Sequence(2048, 2048))
    # 6 * (7.50e9 weights without the embedding) * 2048 = 9.22e13; scores 12 * 32 * 4096 * 2048 *
    # 2049 / 2 = 3.30e12; logits again 2 * 128256 * 4096 * 2048 = 2.15e12
    assert found == pytest.approx(9.222e13 + 3.300e12 + 2.152e12, rel=1e-3)


def test_a_head_with_one_output_has_no_logits():
    decoder = decoder_of(LLAMA_3_8B, "it")
    without = forward(decoder, Sequence(100, 0))
    assert forward(decoder, Sequence(100, 100), "score") == without
    assert forward(decoder, Sequence(100, 100)) - without == 100 * 2 * 128256 * 4096


def test_an_adapter_saves_the_gradients_of_the_matrices():
    decoder = decoder_of(LLAMA_3_8B, "it")
    whole, part = (
        training(decoder, Sequence(100, 100), has_adapter=has_adapter)
        for has_adapter in (False, True)
    )
    matrices = decoder.active_body + 128256 * 4096
    assert whole - part == pytest.approx(2 * matrices * 100)
