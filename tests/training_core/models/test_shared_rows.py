"""Several sequences in one row against one sequence per row."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.tolerances import assert_same_through, operations_through, rounding
from training_core.data.batching import collate
from training_core.data.layout import collate_packed, collate_shared, row_length, shared_length
from training_core.models.causal_lm import can_branch, logprobs
from training_core.models.scalar_head import sequence_scores
from training_core.types import Example

SMALL = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
GPT2 = GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=64)
MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SMALL)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SMALL)),
    "gpt2": (GPT2LMHeadModel, GPT2),
}


def make(name, kernel="sdpa"):
    kind, config = MODELS[name]
    torch.manual_seed(1)
    config._attn_implementation = kernel
    return kind(config).to(torch.float64).eval()


def example(prompt, response):
    ids = (*prompt, *response)
    return Example(ids, (0,) * len(prompt) + (1,) * len(response))


# Prompts of 3 and 5 tokens, responses of 1 to 4; the second pair's responses begin alike.
GROUPS = [
    [example((1, 2, 3), (4, 5)), example((1, 2, 3), (6, 7, 8, 9))],
    [example((1, 9, 8, 7, 6), (4, 5, 30)), example((1, 9, 8, 7, 6), (4,))],
]
FLAT = [group[k] for k in (0, 1) for group in GROUPS]  # first members, then second members


def test_the_columns_of_a_shared_row_are_as_drawn():
    batch = collate_shared([[example((1, 2, 3), (4, 5)), example((1, 2, 3), (6, 7, 8))]], 0)
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8]]
    assert batch.layout is not None
    assert batch.layout.positions.tolist() == [[0, 1, 2, 3, 4, 3, 4, 5]]
    assert batch.layout.branches.tolist() == [[0, 0, 0, 1, 1, 2, 2, 2]]
    assert batch.layout.predictors.tolist()[0][3:] == [2, 3, 2, 5, 6]
    assert batch.layout.sequences.tolist() == [[-1, -1, -1, 0, 0, 1, 1, 1]]
    assert batch.layout.ends.tolist() == [[0, 4], [0, 7]]
    assert batch.loss_mask.tolist() == [[False] * 3 + [True] * 5]


def test_a_prompt_is_shared_up_to_its_first_trained_token():
    assert shared_length(GROUPS[1]) == 5  # the responses' common 4 is trained, so it stays apart
    assert row_length(GROUPS[1]) == 5 + 3 + 1


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("name", MODELS)
def test_a_shared_prompt_changes_no_logprob_and_no_gradient(name, kernel):
    model = make(name, kernel)
    parameters = list(model.parameters())
    weights = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)

    def outcome(batch):
        sums = batch.sequence_sums(logprobs(model, batch))
        return sums, torch.autograd.grad((sums * weights).sum(), parameters, allow_unused=True)

    expected, expected_gradients = outcome(collate(FLAT, 0))
    found, gradients = outcome(collate_shared(GROUPS, 0))

    def assert_same(ours, theirs, dtype):
        room = rounding(
            dtype, operations_through(model), max(1.0, float(theirs.detach().abs().max()))
        )
        torch.testing.assert_close(ours, theirs, rtol=0, atol=room)

    # Llama and Qwen compute in float32 whatever their precision: in norms, whose gradients gather
    # what comes from several branches, and in the softmax of eager attention, over longer rows.
    backward = torch.float64 if name == "gpt2" else torch.float32
    assert_same(found, expected, torch.float64 if kernel == "sdpa" else backward)
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        assert_same(ours, theirs, backward)


def test_packed_neighbours_do_not_see_each_other():
    model = make("llama")
    expected = logprobs(model, collate(FLAT, 0)).sum(dim=1)
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        packs = [[FLAT[i] for i in order[:3]], [FLAT[order[3]]]]
        batch = collate_packed(packs, 0)
        found = batch.sequence_sums(logprobs(model, batch))
        assert_same_through(model, found, expected[order])


def test_a_reward_model_scores_the_branches_as_it_scores_whole_sequences(make_scalar_model):
    model = make_scalar_model().double()
    whole, shared = collate(FLAT, 0), collate_shared(GROUPS, 0)
    assert_same_through(model, sequence_scores(model, shared), sequence_scores(model, whole))


def test_sequences_without_a_common_prompt_stand_side_by_side():
    apart = [example((1, 2), (3, 4)), example((5, 6), (7,))]
    model = make("llama")
    shared = collate_shared([apart], 0)
    expected = logprobs(model, collate(apart, 0)).sum(dim=1)
    found = shared.sequence_sums(logprobs(model, shared))
    assert_same_through(model, found, expected)


def test_models_with_windows_are_refused():
    assert can_branch(make("llama"))
    windows = Gemma2Config(**SMALL, sliding_window=4)
    assert not can_branch(Gemma2ForCausalLM(windows))
    local = GPTNeoConfig(
        hidden_size=32, num_layers=2, num_heads=2, vocab_size=64, max_position_embeddings=64,
        attention_types=[[["global", "local"], 1]], window_size=4,
    )  # fmt: skip
    assert not can_branch(GPTNeoForCausalLM(local))
