"""The stage key: what changes it, and what does not."""

from dataclasses import replace
from typing import ClassVar

import pytest
from pydantic import ValidationError

from stages.catalog import STAGES, find_stage
from stages.configs.dpo_config import DpoConfig
from stages.configs.loss_config import DpoLossConfig, PairLossConfig
from stages.configs.sft_config import SftConfig
from stages.runtime.stage_key import digest_of, digest_of_tree, semantic_part, stage_key

SPEC = STAGES["sft"]
SFT = {
    "base": {"name": "scratch"},
    "data": {"name": "cafe", "size": 200},
    "training": {"epochs": 2, "optimizer": {"learning_rate": 1e-3}},
}
INPUTS = {"policy": "abc"}


def key(changes=None, spec=SPEC, inputs=None):
    config = SftConfig.model_validate({**SFT, **(changes or {})})
    return stage_key(spec, config, INPUTS if inputs is None else inputs)


def test_the_key_of_a_fixed_config_is_the_golden_one():
    # If this fails, every finished stage in every store will be done again. Is that meant?
    assert key() == "873414f95a250e0b60868a4a8599c33e904ab4b3d8cb913e422841cbd5ab7114"
    dpo = stage_key(STAGES["dpo"], DpoConfig(), {"policy": "p", "reference": "r"})
    assert dpo == "c008d82fea35589e4c39e998fc124a5ae7f5f7f2e24d256f9ada7c1a22683ca9"


@pytest.mark.parametrize(
    "changes",
    [
        {"resources": {"num_cpus": 8, "num_gpus": 1, "memory_gib": 4}},
        {"training": {**SFT["training"], "micro_batch_tokens": 17}},
        {"training": {**SFT["training"], "save_every_steps": 3}},
        {"training": {**SFT["training"], "keep_checkpoints": 9}},
        {"training": {**SFT["training"], "keep_checkpoints_gib": 1.5}},
        {"training": {**SFT["training"], "engine": {"name": "deepspeed", "zero_stage": 3}}},
        {"resources": {"num_workers": 4}},
    ],
)
def test_an_operational_field_does_not_change_the_key(changes):
    assert key(changes) == key()


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"chat_template": "plain"},
        {"pad_token": "<pad>"},
        {"rows": "texts"},
        {"train_on": "last_turn"},
        {"reward_suffix": " {reward}"},
        {"model": {"lora": {}}},
        {"model": {"frozen": ["model.embed_tokens.*"]}},
        {"base": {"name": "scratch", "hidden_size": 64}},
        {"base": {"name": "hub", "repo": "a/b", "revision": "c"}},
        {"data": {"name": "cafe", "size": 201}},
        {"data": {"name": "cafe", "size": 200, "seed": 1}},
        {"data": {"name": "cafe", "size": 200, "split": "heldout"}},
        {"eval_data": {"name": "cafe", "size": 200}},
        {"training": {**SFT["training"], "epochs": 3}},
        {"training": {**SFT["training"], "batch_size": 63}},
        {"training": {**SFT["training"], "max_tokens": 1023}},
        {"training": {**SFT["training"], "ema_decay": 0.9}},
        *(
            {"training": {"epochs": 2, "optimizer": {"learning_rate": 1e-3, **change}}}
            for change in (
                {"learning_rate": 2e-3},
                {"schedule": "linear"},
                {"warmup_fraction": 0.1},
                {"weight_decay": 0.1},
                {"max_grad_norm": 2.0},
                {"min_ratio": 0.2},
                {"decay_fraction": 0.2},
                {"betas": (0.9, 0.999)},
                {"eps": 1e-6},
                {"name": "muon"},
                {"name": "muon", "momentum": 0.9},
                {"name": "muon", "nesterov": False},
                {"name": "muon", "ns_steps": 4},
                {"name": "muon", "scaling": "original"},
                {"name": "muon", "auxiliary_learning_rate": 1e-4},
            )
        ),
    ],
    ids=str,
)
def test_each_semantic_field_changes_the_key(changes):
    assert key(changes) != key()


def test_each_semantic_field_of_an_evaluation_changes_the_key():
    heldout = {"eval_data": {"name": "cafe", "size": 20}}
    every, best = {"eval_every_steps": 5}, {"best_metric": {"metric": "heldout_loss"}}
    settings = ({}, every, best, {**every, **best}, {**every, **best, "export": "best"})
    keys = [key({**heldout, "training": {**SFT["training"], **one}}) for one in settings]
    assert len({*keys, key()}) == 6


def test_every_semantic_field_of_this_config_is_in_the_tests_above():
    training = set(semantic_part(SftConfig.model_validate(SFT))["training"])
    assert training == {
        "epochs",
        "batch_size",
        "max_tokens",
        "optimizer",
        "ema_decay",
        "eval_every_steps",
        "best_metric",
        "export",
    }
    top = set(semantic_part(SftConfig.model_validate(SFT)))
    assert top == {
        "seed", "base", "model", "data", "eval_data", "rows", "train_on", "reward_suffix",
        "chat_template", "pad_token", "training",
    }  # fmt: skip


def test_the_digest_and_the_role_of_an_input_change_the_key():
    keys = {key(inputs=i) for i in ({}, {"policy": "abc"}, {"policy": "abd"}, {"base": "abc"})}
    assert len(keys) == 4


def test_the_stage_and_its_version_change_the_key():
    others = {
        key(spec=replace(SPEC, version=SPEC.version + 1)),
        key(spec=replace(SPEC, name="sft2")),
    }
    assert len(others | {key()}) == 3
    assert key(spec=replace(SPEC, headline="other", trains=False)) == key()  # the report does not


def test_a_whole_number_of_epochs_is_the_same_however_it_is_written():
    assert key({"training": {**SFT["training"], "epochs": 2.0}}) == key()


def test_the_two_losses_have_different_keys_even_with_equal_numbers():
    spec = find_stage("dpo")
    dpo = stage_key(spec, DpoConfig.model_validate({"loss": {"name": "dpo", "beta": 0.1}}), {})
    ipo = stage_key(spec, DpoConfig.model_validate({"loss": {"name": "ipo", "beta": 0.1}}), {})
    assert dpo != ipo


LOSSES = [loss.model_fields["name"].default for loss in PairLossConfig.__subclasses__()]


@pytest.mark.parametrize("name", LOSSES)
def test_the_weight_of_the_nll_is_0_in_the_key_where_nobody_sets_it(name):
    spec, loss = find_stage("dpo"), {"loss": {"name": name}}
    unset, null, zero, other = (
        stage_key(spec, DpoConfig.model_validate({**loss, **nll}), {})
        for nll in ({}, {"nll_coef": None}, {"nll_coef": 0.0}, {"nll_coef": 0.2})
    )
    assert unset == null == zero != other


def test_a_loss_brings_its_own_weight_of_the_nll_and_the_config_overrules_it():
    class Likely(DpoLossConfig):
        default_nll_coef: ClassVar[float] = 0.75

    assert DpoConfig(loss=Likely()).nll_coef == 0.75
    assert DpoConfig(loss=Likely(), nll_coef=0.5).nll_coef == 0.5
    again = DpoConfig.model_validate(DpoConfig(loss=Likely()).model_dump(mode="json"))
    assert again.nll_coef == 0.75


def test_a_loss_that_is_refused_is_the_only_error():
    with pytest.raises(ValidationError, match=r"1 validation error(.|\n)*loss\.dpo\.betta"):
        DpoConfig.model_validate({"loss": {"name": "dpo", "betta": 1}})


def test_the_digest_of_json_does_not_depend_on_the_order_of_keys():
    assert digest_of({"a": 1, "b": [1, {"c": 2, "d": 3}]}) == digest_of(
        {"b": [1, {"d": 3, "c": 2}], "a": 1}
    )
    assert digest_of([1, 2]) != digest_of([2, 1])


def test_the_digest_of_a_tree_sees_names_and_contents_and_no_times(tmp_path):
    (tmp_path / "one" / "sub").mkdir(parents=True)
    (tmp_path / "two" / "sub").mkdir(parents=True)
    for root in ("two", "one"):
        (tmp_path / root / "sub" / "b.txt").write_text("b")
        (tmp_path / root / "a.txt").write_text("a")
    (tmp_path / "two" / ".hidden").write_text("x")
    one, two = tmp_path / "one", tmp_path / "two"
    known = digest_of_tree(one)
    assert digest_of_tree(two) == known
    (two / "a.txt").write_text("c")
    assert digest_of_tree(two) != known
    (one / "a.txt").rename(one / "c.txt")
    assert digest_of_tree(one) != known
