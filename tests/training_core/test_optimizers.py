"""Which parameters get which update, and which of them decay."""

import copy
import math

import pytest
import torch
from torch import nn
from two_processes import micro_batches, tiny_llama

from training_core.engine.optimizers import OPTIMIZERS, adamw, decay_groups, hidden_matrices, muon
from training_core.engine.torch_engine import TorchEngine
from training_core.loop import train_steps
from training_core.objectives.supervised import supervised


def names_of(model, parameters):
    chosen = {id(p) for p in parameters}
    return {name for name, p in model.named_parameters() if id(p) in chosen}


def test_muon_has_the_matrices_of_the_layers_and_nothing_else():
    model = tiny_llama()
    matrices = names_of(model, hidden_matrices(model))
    parts = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert {name.split(".")[-2] for name in matrices} == set(parts)
    assert len(matrices) == 2 * len(parts)  # two layers; no embedding, no head, no norm


def test_a_head_that_is_not_tied_is_not_a_hidden_matrix_and_a_frozen_one_neither(make_scalar_model):
    critic = make_scalar_model()
    matrices = names_of(critic, hidden_matrices(critic))
    assert "score.weight" not in matrices
    assert "model.embed_tokens.weight" not in matrices
    frozen = next(iter(matrices))
    critic = copy.deepcopy(critic)
    critic.get_parameter(frozen).requires_grad_(False)
    assert names_of(critic, hidden_matrices(critic)) == matrices - {frozen}


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_trained_parameter_has_exactly_one_update(name):
    model = tiny_llama()
    model.model.norm.weight.requires_grad_(False)
    optimizers = OPTIMIZERS[name](model, learning_rate=1e-3, weight_decay=0.1)
    held = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    assert len(held) == len({id(p) for p in held})
    assert names_of(model, held) == {n for n, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_norms_and_biases_never_decay(name):
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    optimizers = OPTIMIZERS[name](model, learning_rate=1e-3, weight_decay=0.5)
    decays = {
        id(p): group["weight_decay"]
        for o in optimizers
        for group in o.param_groups
        for p in group["params"]
    }
    for parameter_name, parameter in model.named_parameters():
        expected = 0.5 if parameter_name == "0.weight" else 0.0
        assert decays[id(parameter)] == expected, parameter_name


def test_groups_are_told_apart_by_dimensions():
    matrix, vector, fused = torch.zeros(2, 2), torch.zeros(2), torch.zeros(2, 2, 2)
    first, second = decay_groups([matrix, vector, fused], 0.3)
    assert [p.ndim for p in first["params"]] == [2, 3]
    assert (first["weight_decay"], second["weight_decay"]) == (0.3, 0.0)
    assert [p.ndim for p in second["params"]] == [1]


def test_a_step_of_muon_is_a_rotation_of_the_size_of_an_adamw_step():
    model = nn.Sequential(nn.Linear(4, 4, bias=False))
    before = model[0].weight.detach().clone()
    engine = TorchEngine(
        model, learning_rate=0.1, schedule=lambda _: 1.0, optimizer=muon, weight_decay=0.0
    )
    generator = torch.Generator().manual_seed(0)
    engine.backward((model[0].weight * torch.randn(4, 4, generator=generator)).sum())
    engine.step(count=1)
    moved = (before - model[0].weight.detach()) / 0.1
    # An orthogonal 4 x 4 matrix has singular values of 1, which Newton-Schulz meets within
    # [0.5, 1.5]; times 0.2 * sqrt(max(4, 4)) = 0.4.
    values = torch.linalg.svdvals(moved) / 0.4
    assert values.min() > 0.5
    assert values.max() < 1.5
    assert moved.square().mean().sqrt() == pytest.approx(0.2, rel=0.3)  # AdamW's, in Moonlight


def test_the_auxiliary_rate_is_its_own_and_follows_the_schedule():
    model = nn.Sequential(nn.Linear(2, 2))
    nn.init.zeros_(model[0].bias)

    def build(model, **settings):
        return muon(model, **settings, auxiliary_learning_rate=0.01)

    engine = TorchEngine(
        model, learning_rate=0.5, schedule=lambda step: 1 / (1 + step), optimizer=build
    )
    for expected in (-0.01, -0.015):  # AdamW's step is the rate: 0.01, then 0.01 / 2
        engine.backward(model[0].bias.sum() + model[0].weight.sum())
        engine.step(count=1)
        assert model[0].bias.tolist() == pytest.approx([expected] * 2, rel=1e-4)
    assert engine.learning_rate == pytest.approx(0.5 / 3)


def test_betas_and_eps_are_those_that_were_given():
    model = nn.Linear(2, 2)
    (optimizer,) = adamw(model, learning_rate=1.0, betas=(0.8, 0.9), eps=0.5)
    assert {(g["betas"], g["eps"]) for g in optimizer.param_groups} == {((0.8, 0.9), 0.5)}


def test_a_restored_muon_goes_on_bit_for_bit():
    def engine_of(model):
        return TorchEngine(
            model, learning_rate=1e-2, schedule=lambda step: 1 / (1 + step), optimizer=muon
        )

    batches = [micro_batches(step) for step in range(4)]
    undisturbed = engine_of(tiny_llama())
    losses = [r.loss for r in train_steps(undisturbed, supervised, batches)]
    assert all(math.isfinite(loss) for loss in losses)

    first = engine_of(tiny_llama())
    list(train_steps(first, supervised, batches[:2]))
    second = engine_of(copy.deepcopy(first.model))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    list(train_steps(second, supervised, batches[2:]))
    for name, weight in undisturbed.model.state_dict().items():
        assert torch.equal(second.model.state_dict()[name], weight), name
