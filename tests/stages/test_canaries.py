"""Each canary stops the bug that it is for; a healthy stage carries the results."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import get_args

import pytest
import torch
from torch import nn
from transformers import AttentionInterface

from stages.attempt import Attempt
from stages.batches.encoding import (
    demonstration_examples,
    encode_demonstrations,
    encode_pairs,
    pair_examples,
)
from stages.batches.micro_batches import Examples
from stages.canaries.answers import answers_in
from stages.canaries.model_checks import equal_reference, padding_invariance, split_invariance
from stages.canaries.probe import (
    EqualReference,
    FirstUpdate,
    Probe,
    chosen_items,
    dataset_probe,
    end_states,
    rounding_of,
    trained_logprobs,
)
from stages.canaries.table import CANARIES
from stages.canaries.token_checks import mask_audit, single_bos
from stages.canaries.update_checks import first_kl, first_ratio, sampler_gap
from stages.catalog import STAGES
from stages.configs.canary_record import CanaryName
from stages.configs.data_config import CafeDataConfig
from stages.datasets import demonstrations, preferences
from stages.files import write_jsonl
from stages.runtime.store import Store
from training_core.data.chat import bos_id, pad_id
from training_core.models.causal_lm import logprobs
from training_core.models.offloading import FrozenWeights
from training_core.models.scratch import Architecture, make_policy
from training_core.objectives.supervised import supervised
from training_core.types import Example, Loss

CPU = torch.device("cpu")
ROWS = demonstrations(CafeDataConfig(size=24, seed=3))
SFT = {
    "base": {
        "name": "scratch",
        "hidden_size": 32,
        "num_layers": 1,
        "num_heads": 2,
        "intermediate_size": 64,
    },
    "data": {"name": "cafe", "size": 64},
    "chat_template": "roles",
    "training": {"batch_size": 16, "max_tokens": 64},
}


@pytest.fixture(scope="module")
def policy(tokenizer):
    sizes = Architecture(
        hidden_size=32, num_layers=2, num_heads=2, intermediate_size=64, max_positions=128
    )
    return make_policy(sizes, tokenizer, seed=0).eval()


@pytest.fixture(scope="module")
def examples(tokenizer):
    return encode_demonstrations(tokenizer, ROWS, max_tokens=128)


def probe_of(policy, tokenizer, examples, *, objective=supervised, **settings):
    collator = Examples(examples, pad_id(tokenizer), CPU)
    return dataset_probe(
        FrozenWeights(policy, CPU),
        tokenizer,
        collator,
        examples,
        objective,
        outputs=trained_logprobs,
        budget_tokens=8192,
        **settings,
    )


def audited(tokenizer, examples):
    encode = partial(demonstration_examples, tokenizer, max_tokens=128)
    return answers_in(ROWS, encode, examples)


# ------------------------------------------- the table


def test_the_table_has_every_name_and_the_records_use_no_other():
    assert set(CANARIES) == set(get_args(CanaryName))
    named = {name for record in STAGES.values() for name in record.canaries}
    assert named == set(CANARIES)
    assert all(record.canaries for record in STAGES.values() if record.trains)


# ------------------------------------------- tokens


def test_a_healthy_mask_passes_the_audit(tokenizer, policy, examples):
    answers = audited(tokenizer, examples)
    assert len(answers) == 8
    finding = mask_audit(probe_of(policy, tokenizer, examples, answers=answers))
    assert finding is not None
    assert (finding.found, finding.passes) == (0.0, True)


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (lambda mask: (*mask[1:], 0), "found"),  # one token too early, and no end token
        (lambda mask: (0, *mask[:-1]), "found"),  # the first token of the response is untrained
        (lambda mask: (0,) * len(mask), "no token is trained"),
        (lambda mask: (0, *(1,) * (len(mask) - 2), 0), "found"),  # the end token is untrained
    ],
)
def test_a_shifted_mask_is_stopped_and_the_row_is_named(tokenizer, policy, examples, change, seen):
    answers = [
        replace(a, example=Example(a.example.input_ids, change(a.example.loss_mask)))
        for a in audited(tokenizer, examples)
    ]
    finding = mask_audit(probe_of(policy, tokenizer, examples, answers=answers))
    assert finding is not None
    assert not finding.passes
    assert finding.found == len(answers)
    assert "row of " in finding.problem
    assert seen in finding.problem


def test_a_trained_question_of_the_user_is_stopped(tokenizer, policy, examples):
    (answer, *_) = audited(tokenizer, examples)
    mask = list(answer.example.loss_mask)
    mask[2:4] = [1, 1]  # words of the user
    wrong = replace(answer, example=Example(answer.example.input_ids, tuple(mask)))
    finding = mask_audit(probe_of(policy, tokenizer, examples, answers=[wrong]))
    assert finding is not None
    assert not finding.passes
    assert "only answers of the assistant are trained" in finding.problem


def test_both_sides_of_a_pair_are_audited(tokenizer, policy):
    rows = preferences(CafeDataConfig(size=12, seed=1))
    pairs = encode_pairs(tokenizer, rows, max_tokens=128)
    answers = answers_in(rows, partial(pair_examples, tokenizer, max_tokens=128), pairs)
    assert {a.response for a in answers} >= {rows[0].chosen, rows[0].rejected}
    finding = mask_audit(Probe(tokenizer, CPU, 1e-3, answers=answers))
    assert finding is not None
    assert finding.passes


def test_two_bos_tokens_are_stopped(tokenizer, policy, examples):
    healthy = single_bos(probe_of(policy, tokenizer, examples))
    assert healthy is not None
    assert healthy.passes
    bos = bos_id(tokenizer)
    assert bos is not None
    doubled = [Example((bos, *e.input_ids), (0, *e.loss_mask)) for e in examples[:3]]
    finding = single_bos(probe_of(policy, tokenizer, [*doubled, *examples[3:]]))
    assert finding is not None
    assert finding.found == 3.0
    assert not finding.passes


# ------------------------------------------- the model


def test_padding_changes_nothing_in_a_healthy_model(tokenizer, policy, examples):
    with torch.no_grad():
        finding = padding_invariance(probe_of(policy, tokenizer, examples))
    assert finding is not None
    assert finding.passes
    assert finding.limit == pytest.approx(3.45e-4, rel=0.01)  # sqrt(2**-23)


def blind_attention(module, query, key, value, attention_mask, **settings):
    """Ignore the mask, as a kernel does that knows only causal attention."""
    del attention_mask, settings
    heads = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(heads, dim=1) for each in (key, value))
    out = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return out.transpose(1, 2).contiguous(), None


@pytest.mark.parametrize("outputs", [trained_logprobs, end_states])
def test_an_attention_that_sees_padding_is_stopped(tokenizer, examples, outputs):
    AttentionInterface.register("blind", blind_attention)
    sizes = Architecture(
        hidden_size=32, num_layers=2, num_heads=2, intermediate_size=64, max_positions=128
    )
    model = make_policy(sizes, tokenizer, seed=0).eval()
    model.set_attn_implementation("blind")
    probe = replace(
        probe_of(model, tokenizer, examples), compute=lambda batch: outputs(model, batch)
    )
    with torch.no_grad():
        finding = padding_invariance(probe)
    assert finding is not None
    assert not finding.passes
    assert "padded on the left" in finding.problem


def mean_per_micro_batch(model, batch):
    """The loss of OpenRLHF#1249: divided by the tokens of the micro-batch."""
    loss = -logprobs(model, batch).sum() / batch.loss_mask.sum()
    return Loss(loss, 1.0)


def test_a_loss_that_depends_on_the_split_is_stopped(tokenizer, policy, examples):
    with torch.no_grad():
        healthy = split_invariance(probe_of(policy, tokenizer, examples))
        wrong = split_invariance(
            probe_of(policy, tokenizer, examples, objective=mean_per_micro_batch)
        )
    assert healthy is not None
    assert healthy.passes
    assert wrong is not None
    assert not wrong.passes
    assert "in 2, " in wrong.problem


def test_the_canaries_choose_items_of_different_lengths_that_fit_together():
    lengths = [50, 10, 40, 20, 30, 900]
    assert [lengths[i] for i in chosen_items(lengths, 200)] == [10, 20, 30, 50]
    assert [lengths[i] for i in chosen_items(lengths, 60)] == [10, 20]
    assert chosen_items([5], 100) == [0]


def test_rounding_belongs_to_the_coarsest_weights(policy):
    assert rounding_of(policy) == pytest.approx(2**-11.5)
    assert rounding_of(nn.Linear(2, 2).to(torch.bfloat16)) == pytest.approx(2**-3.5)


def test_an_equal_reference_gives_ln_2_and_another_one_does_not(tokenizer):
    def measured(ratios):
        start = EqualReference(torch.tensor(ratios), tokens=10, rounding=1e-3, is_half=False)
        finding = equal_reference(Probe(tokenizer, CPU, 1e-3, equal_reference=start))
        assert finding is not None
        return finding

    assert measured([[0.0, 0.0]]).found == pytest.approx(0.0, abs=1e-6)
    wrong = measured([[-1.0, 0.0]])  # softplus(1) = 1.3133; 1.3133 - 0.6931 = 0.6201
    assert wrong.found == pytest.approx(0.6201, abs=1e-4)
    assert not wrong.passes
    single = measured([[0.25], [-0.75]])  # KTO: the mean distance from 0
    assert single.found == 0.5
    assert not single.passes


def test_the_first_update_starts_at_ratio_1_and_kl_0(tokenizer):
    first = FirstUpdate(
        old_logprobs=torch.tensor([-1.0, -2.0]),
        log_ratios=torch.zeros(2),
        ref_logprobs=torch.tensor([-1.0, -2.0]),
        sampler_gap=1e-6,
        sampler_limit=0.02,
        ratio_limit=1e-3,
    )
    checks = (first_ratio, first_kl, sampler_gap)
    healthy = [check(Probe(tokenizer, CPU, 1e-3, first_update=first)) for check in checks]
    assert all(f is not None and f.passes for f in healthy)
    wrong = replace(
        first,
        log_ratios=torch.tensor([0.5, -0.5]),
        ref_logprobs=torch.tensor([-1.5, -2.5]),
        sampler_gap=0.1,
    )
    found = [check(Probe(tokenizer, CPU, 1e-3, first_update=wrong)) for check in checks]
    assert [f.found for f in found if f] == [0.5, 0.5, 0.1]
    assert not any(f.passes for f in found if f)


# ------------------------------------------- a stage


def test_a_healthy_stage_carries_the_results(store, finish):
    manifest = finish(store, "sft", SFT)
    found = {canary.name: canary for canary in manifest.canaries}
    assert list(found) == ["mask_audit", "single_bos", "padding_invariance", "split_invariance"]
    assert all(canary.found <= canary.limit for canary in found.values())
    assert found["padding_invariance"].found < 1e-5
    assert found["mask_audit"].shows == CANARIES["mask_audit"].shows


def test_a_stage_with_a_double_bos_stops_before_its_first_step(
    store, tmp_path, write_request, run_here
):
    rows = [{"text": f"<s> <s> {number} tea and {number + 1} cake"} for number in range(20)]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    data = {"name": "files", "path": str(tmp_path / "rows.jsonl")}
    request = write_request(store, "sft", {**SFT, "rows": "texts", "data": data})
    assert run_here(request) == 32
    attempt = Attempt(request.parent)
    error = json.loads(attempt.error.read_text())
    assert error["kind"] == "CanaryError"
    assert "the canary single_bos failed before the first step" in error["message"]
    assert "in 20 of 20" in error["message"]
    assert not attempt.metrics.exists()


def test_a_resumed_attempt_keeps_the_results_of_the_first(store, write_request, run_here):
    request = write_request(store, "sft", {**SFT, "seed": 5})
    planted = {"name": "single_bos", "shows": "from the attempt before", "found": 0, "limit": 0}
    Attempt(request.parent).canaries.write_text(json.dumps({"canaries": [planted]}))
    second = write_request(store, "sft", {**SFT, "seed": 5}, attempt="a2")
    assert run_here(second) == 0
    manifest = store.find("sft", Attempt(second.parent).key)
    assert [canary.shows for canary in manifest.canaries] == ["from the attempt before"]


def test_canaries_do_not_change_the_result(store, finish, tmp_path):
    """Without them the weights are the same bytes: no random number is drawn."""
    names = ["mask_audit", "single_bos", "padding_invariance", "split_invariance"]
    config = {**SFT, "seed": 7}
    first = finish(store, "sft", config)
    second = finish(Store(tmp_path / "other"), "sft", {**config, "skip_canaries": names})
    assert second.key == first.key
    assert second.canaries == ()
    assert second.digest == first.digest
