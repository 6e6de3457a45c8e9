"""Load balancing of a mixture of experts."""

import pytest
import torch
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from tests.tolerances import assert_same_through, rounding
from training_core.data.batching import collate
from training_core.data.layout import collate_packed, collate_shared
from training_core.errors import ConfigError
from training_core.models.causal_lm import hidden_states, logprobs
from training_core.models.experts import Routing, routing, sequence_balance
from training_core.types import Batch, Example

PAD = 0
EXAMPLES = [
    Example((5, 9, 7, 30, 12, 6, 2), (0, 0, 0, 1, 1, 1, 1)),
    Example((5, 9, 7, 40, 2), (0, 0, 0, 1, 1)),
]
MIXTURES = ["mixtral", "qwen3-moe"]


def balance(model, batch):
    with routing(model) as routed:
        hidden_states(model, batch)
    return sequence_balance(routed, batch)


def test_a_worked_sequence():
    # Two tokens, three experts, top 1. Probabilities (1/2, 1/4, 1/4) and (1/4, 1/2, 1/4).
    # f = (1/2, 1/2, 0), P = (3/8, 3/8, 1/4); loss = 3 * (3/16 + 3/16) = 9/8. Padding is left out.
    logits = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.9, 0.05, 0.05]]).log()
    mask = torch.tensor([[True, True, False]])
    batch = Batch(torch.zeros(1, 3, dtype=torch.long), mask, mask)
    found = sequence_balance(Routing(top_k=1, router_logits=[(logits,)]), batch)
    room = rounding(torch.float32, 20, 2.7)  # logarithm, softmax, means and sums of 3, products
    assert found.tolist() == pytest.approx([9 / 8], abs=room)
    # A second layer that uses expert 0 alone: f = (1, 0, 0), P = (0.9, …), loss 2.7; mean with 9/8.
    one_sided = torch.tensor([[0.9, 0.05, 0.05]] * 3).log()
    found = sequence_balance(Routing(top_k=1, router_logits=[(logits, one_sided)]), batch)
    assert found.tolist() == pytest.approx([(9 / 8 + 2.7) / 2], abs=room)


@pytest.mark.parametrize("architecture", MIXTURES)
def test_it_is_transformers_loss_of_each_sequence_and_layer(tiny, architecture):
    model = tiny(architecture)
    found = balance(model, collate(EXAMPLES, PAD))
    for row, example in enumerate(EXAMPLES):
        ids = torch.tensor([example.input_ids])
        layers = model(ids, output_router_logits=True).router_logits
        assert len(layers) == 2
        expected = torch.stack([load_balancing_loss_func((x,), 4, top_k=2) for x in layers]).mean()
        assert_same_through(model, found[row], expected)


def test_neither_the_cut_nor_the_layout_changes_its_gradient(tiny):
    model = tiny("mixtral")
    router = model.model.layers[0].mlp.gate.weight

    def gradient(batches):
        model.zero_grad()
        for batch in batches:
            balance(model, batch).sum().backward()
        return router.grad.clone()

    together = gradient([collate(EXAMPLES, PAD)])
    assert together.abs().max() > 0.01
    for batches in (
        [collate([e], PAD) for e in EXAMPLES],
        [collate_shared([EXAMPLES], PAD)],
        [collate_packed([EXAMPLES], PAD)],
    ):
        assert_same_through(model, gradient(batches), together)


@pytest.mark.parametrize("architecture", MIXTURES)
def test_its_gradient_evens_the_experts_out(tiny, architecture):
    model = tiny(architecture)
    batch = collate(EXAMPLES, PAD)
    routers = [p for name, p in model.named_parameters() if name.endswith("mlp.gate.weight")]
    before = balance(model, batch).sum()
    before.backward()
    with torch.no_grad():
        for router in routers:
            assert router.grad.abs().max() > 0
            router.sub_(router.grad, alpha=0.02)
    assert balance(model, batch).sum() < before


def test_without_it_the_log_probabilities_are_what_they_were(tiny):
    model = tiny("mixtral")
    batch = collate(EXAMPLES, PAD)
    plain = logprobs(model, batch)
    with routing(model) as routed:
        assert torch.equal(logprobs(model, batch), plain)
    assert len(routed.router_logits) == 1
    logprobs(model, batch)
    assert len(routed.router_logits) == 1  # nothing is recorded outside


def test_gradient_checkpointing_does_not_change_it(tiny):
    gradients = []
    for is_checkpointed in (False, True):
        model = tiny("qwen3-moe").train()
        if is_checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        balance(model, collate(EXAMPLES, PAD)).sum().backward()
        gradients.append(model.model.layers[0].mlp.gate.weight.grad)
    assert_same_through(model, gradients[0], gradients[1])


def test_a_dense_model_has_nothing_to_balance(tiny):
    with pytest.raises(ConfigError, match=r"moe_aux_loss_coef.*llama"), routing(tiny("llama-tied")):
        pass
