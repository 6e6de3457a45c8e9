"""Weights of frozen models that wait in CPU memory."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from tests.devices import on_cpu_and_gpu
from training_core.models import hub
from training_core.models.hub import freeze
from training_core.models.offloading import FrozenWeights

ELSEWHERE = torch.device("meta")
"""A device of every machine that is not the CPU."""


def places(model):
    return {(t.device.type, t.data_ptr()) for t in (*model.parameters(), *model.buffers())}


def test_offloaded_weights_are_on_their_device_only_while_the_model_computes(make_policy):
    model = freeze(make_policy())
    as_made = copy.deepcopy(model.state_dict())
    weights = FrozenWeights(model, ELSEWHERE, offload=True)
    at_rest = places(model)
    assert {device for device, _ in at_rest} == {"cpu"}

    with weights.at_work() as working:
        assert working is model
        assert model.device == ELSEWHERE
        with weights.at_work():
            pass
        assert {device for device, _ in places(model)} == {"meta"}  # the inner use was not the last

    assert places(model) == at_rest  # nothing was copied back
    assert all(torch.equal(as_made[name], now) for name, now in model.state_dict().items())


def test_tied_weights_stay_tied(make_policy):
    model = make_policy()
    model.lm_head.weight = model.model.embed_tokens.weight
    weights = FrozenWeights(freeze(model), ELSEWHERE, offload=True)
    with weights.at_work():
        assert model.lm_head.weight is model.model.embed_tokens.weight


def test_new_values_at_rest_are_those_at_work(make_policy):
    """PPO gives the reference the policy's weights every `reference_reset_steps` rounds."""
    model, other = freeze(make_policy(seed=0)), make_policy(seed=1)
    weights = FrozenWeights(model, ELSEWHERE, offload=True)
    model.load_state_dict(other.state_dict())
    with weights.at_work():
        pass
    assert all(torch.equal(other.state_dict()[n], now) for n, now in model.state_dict().items())


def test_weights_rest_again_after_an_error(make_policy):
    weights = FrozenWeights(freeze(make_policy()), ELSEWHERE, offload=True)
    with pytest.raises(ZeroDivisionError), weights.at_work():
        1 / 0  # noqa: B018
    assert weights.model.device.type == "cpu"


def test_without_offload_the_weights_stay_on_the_device(make_policy):
    weights = FrozenWeights(freeze(make_policy()), ELSEWHERE)
    assert weights.model.device == ELSEWHERE
    with weights.at_work() as model:
        assert model.device == ELSEWHERE
    assert weights.model.device == ELSEWHERE


def anonymous_bytes():
    """Memory of this process that no file has."""
    rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()
    (line,) = [line for line in rollup if line.startswith("Anonymous:")]
    return int(line.split()[1]) * 1024


def test_loading_on_a_cpu_maps_the_files_in_memory(make_policy, tokenizer, tmp_path):
    """All workers of a machine share these pages, so each can load the model that they divide."""
    made = make_policy(hidden_size=512, intermediate_size=2048, num_layers=8).bfloat16()
    hub.save(made, tokenizer, tmp_path)
    hub.load_policy(tmp_path, dtype=torch.bfloat16)  # what torch allocates once
    before = anonymous_bytes()
    model = hub.load_policy(tmp_path, dtype=torch.bfloat16)
    size = sum(p.nbytes for p in model.parameters())
    assert size > 60e6
    assert anonymous_bytes() - before < size / 4
    pairs = zip(model.parameters(), made.parameters(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


@on_cpu_and_gpu
def test_offloading_gives_the_same_logits_and_weights_and_frees_the_gpu(make_policy, device):
    """On a CPU nothing moves, so there is nothing to free."""
    ids = torch.arange(1, 9, device=device)[None]
    model = freeze(make_policy())
    as_made = copy.deepcopy(model)
    expected = copy.deepcopy(model).to(device)(input_ids=ids).logits
    weights = FrozenWeights(model, torch.device(device), offload=True)
    held = torch.cuda.memory_allocated if device == "cuda" else lambda: 0
    before = held()
    for _ in range(2):
        with weights.at_work() as working:
            logits = working(input_ids=ids).logits
            assert working.device.type == device
            assert held() > before or device == "cpu"
        assert torch.equal(logits, expected)
        del logits
        assert held() == before
        assert model.device.type == "cpu"
        for name, weight in as_made.state_dict().items():
            assert torch.equal(model.state_dict()[name], weight), name
