"""Laws of stage keys and of merging configurations."""

import copy
import json

from hypothesis import given
from hypothesis import strategies as st

from flows.config.presets import deep_merge, parse_assignments
from stages.catalog import STAGES
from stages.configs.sft_config import SftConfig
from stages.runtime.stage_key import digest_of, stage_key
from tests.properties.examples import examples

laws = examples(100)

keys = st.sampled_from(["a", "b", "c", "d"])
scalars = (
    st.integers(0, 3)
    | st.booleans()
    | st.sampled_from(["x", "y"])
    | st.lists(st.integers(0, 2), max_size=2)
)
blocks = st.recursive(
    st.dictionaries(keys, scalars, max_size=3),
    lambda inner: st.dictionaries(keys, scalars | inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def turned(value):
    """The same value with every dictionary in the opposite order."""
    if isinstance(value, dict):
        return {k: turned(v) for k, v in reversed(value.items())}
    return [turned(v) for v in value] if isinstance(value, list) else value


@laws
@given(value=blocks)
def test_a_digest_does_not_depend_on_the_order_of_keys(value):
    assert digest_of(value) == digest_of(turned(value))
    assert digest_of(value) == digest_of(json.loads(json.dumps(value)))


@laws
@given(
    seed=st.integers(0, 9),
    epochs=st.integers(1, 3),
    rate=st.floats(1e-6, 1e-2),
    columns=st.dictionaries(keys, st.just("p"), max_size=1),
    budget=st.integers(1, 9999),
    inputs=st.dictionaries(keys, st.text(max_size=3)),
)
def test_a_stage_key_does_not_depend_on_the_order_of_keys(  # noqa: PLR0917 - hypothesis names them
    seed, epochs, rate, columns, budget, inputs
):
    config = {
        "seed": seed,
        "data": {"name": "files", "path": "x.jsonl", "columns": columns},
        "training": {
            "epochs": epochs,
            "optimizer": {"learning_rate": rate},
            "micro_batch_tokens": budget,
        },
    }
    one = stage_key(STAGES["sft"], SftConfig.model_validate(config), inputs)
    other = stage_key(STAGES["sft"], SftConfig.model_validate(turned(config)), turned(inputs))
    assert one == other
    config["training"]["micro_batch_tokens"] += 1  # operational
    assert stage_key(STAGES["sft"], SftConfig.model_validate(config), inputs) == one
    config["seed"] += 1  # semantic
    assert stage_key(STAGES["sft"], SftConfig.model_validate(config), inputs) != one


@laws
@given(block=blocks)
def test_merging_with_nothing_changes_nothing(block):
    assert deep_merge(block, {}) == block
    assert deep_merge({}, block) == block
    assert deep_merge(block, block) == block


@laws
@given(base=blocks, changes=blocks)
def test_merging_twice_is_merging_once(base, changes):
    once = deep_merge(base, changes)
    assert deep_merge(once, changes) == once


@laws
@given(base=blocks, changes=blocks)
def test_every_change_arrives_and_nothing_else_moves(base, changes):
    merged = deep_merge(base, changes)
    assert set(merged) == set(base) | set(changes)
    for key in merged:
        if key not in changes:
            assert merged[key] == base[key]
        elif isinstance(changes[key], dict) and isinstance(base.get(key), dict):
            assert merged[key] == deep_merge(base[key], changes[key])
        else:
            assert merged[key] == changes[key]


@laws
@given(base=blocks, changes=blocks)
def test_merging_leaves_both_sides_as_they_were(base, changes):
    before = copy.deepcopy((base, changes))
    deep_merge(base, changes)
    assert (base, changes) == before


@laws
@given(base=blocks, key=keys)
def test_a_none_sets_its_key_and_no_other(base, key):
    assert deep_merge(base, {key: None}) == base | {key: None}
    assert deep_merge({"outer": base}, {"outer": {key: None}}) == {"outer": base | {key: None}}


def test_a_block_with_another_name_replaces_the_old_one_whole():
    base = {"loss": {"name": "dpo", "beta": 0.3, "label_smoothing": 0.1}}
    assert deep_merge(base, {"loss": {"name": "ipo"}}) == {"loss": {"name": "ipo"}}
    kept = {"loss": {"name": "dpo", "beta": 0.5, "label_smoothing": 0.1}}
    assert deep_merge(base, {"loss": {"name": "dpo", "beta": 0.5}}) == kept
    assert deep_merge(base, {"loss": {"beta": 0.5}}) == kept


def test_assignments_are_nested_yaml():
    found = parse_assignments(["ppo.kl_coef=0.05", "ppo.prompts.columns={prompt: q}", "seed=3"])
    assert found == {"ppo": {"kl_coef": 0.05, "prompts": {"columns": {"prompt": "q"}}}, "seed": 3}
