"""The forms that Prefect's page makes can be read and filled in.

No browser runs here. What the page does with a schema is in the docstring of `flows.config.form`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from prefect import Flow
from prefect.utilities.callables import parameter_schema
from pydantic import BaseModel

from flows.config.form import CLOSED
from flows.config.lifecycle_config import LifecycleConfig
from flows.config.preset_form import with_values_of
from flows.config.presets import load_config, with_changes
from flows.full_rlhf import full_rlhf
from flows.iterative_dpo import iterative_dpo
from flows.promote import promote
from flows.raft import raft
from flows.recipe.outline import block_names
from flows.single_stage import stage
from stages.configs.explanation import models_in
from training_core.errors import ConfigError

FLOWS = [full_rlhf, iterative_dpo, raft, stage, promote]


def schema_of(flow: Flow[..., Any]) -> dict[str, Any]:
    """What `prefect deploy` stores for a flow."""
    return parameter_schema(flow).model_dump()


SCHEMA = schema_of(full_rlhf)
DEFINITIONS: dict[str, Any] = SCHEMA["definitions"]


def referred(schema: dict[str, Any]) -> dict[str, Any]:
    return DEFINITIONS[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def opened(field: dict[str, Any]) -> dict[str, Any] | None:
    """The block behind the button `change`; None for a field that is no block."""
    if CLOSED not in field.get("anyOf", []):
        return None
    assert field["type"] == "object"  # else the page closes it when a block in it is opened
    _, block = field["anyOf"]
    return referred(block)


FORM = opened(SCHEMA["properties"]["overrides"]) or {}
LEAVES = [
    (f"{block}.{key}", field)
    for block, content in DEFINITIONS.items()
    for key, field in content["properties"].items()
    if opened(field) is None
]


def nodes(schema: object) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from nodes(part)


@pytest.mark.parametrize("flow", FLOWS, ids=lambda f: f.name)
def test_no_field_of_a_form_is_none_at_first(flow):
    assert [node for node in nodes(schema_of(flow)) if node.get("type") == "null"] == []
    parameters = schema_of(flow)["properties"]
    assert None not in [field.get("default", "asked for") for field in parameters.values()]
    assert parameters["overrides"]["default"] == {}


def test_a_form_sends_nothing_that_nobody_has_filled_in():
    fields = list(nodes(DEFINITIONS))
    assert len(fields) > 500
    assert [field for field in fields if "default" in field or "const" in field] == []
    switches = [field for field in fields if field.get("type") == "boolean"]
    assert switches == []  # they send false
    assert [field for field in fields if "required" in field] == []


@pytest.mark.parametrize(("key", "field"), LEAVES, ids=[key for key, _ in LEAVES])
def test_every_field_is_called_as_in_a_preset_and_says_what_it_takes(key, field):
    assert field["title"] == key.rpartition(".")[2]
    assert len(field["description"]) > 10
    if "anyOf" in field:
        assert [(each["title"], each["type"]) for each in field["anyOf"]] == [
            ("one", "string"),
            ("several", "array"),
        ]
    else:
        assert field.get("type") or field["enum"] == [True, False]


def fields_of(blocks: list[type[BaseModel]]) -> set[str]:
    return {key for block in blocks for key in block.model_fields}


def blocks_with_forms(
    blocks: list[type[BaseModel]], form: dict[str, Any]
) -> Iterator[tuple[list[type[BaseModel]], dict[str, Any]]]:
    """A block, or all members of a union, with the form that opens for it; then all below."""
    yield blocks, form
    for key in fields_of(blocks):
        infos = [block.model_fields[key] for block in blocks if key in block.model_fields]
        below = list(dict.fromkeys(m for info in infos for m in models_in(info.annotation)))
        if below and "additionalProperties" not in form["properties"][key]:  # else any JSON
            field = form["properties"][key]
            inner = opened(field) or referred(field["items"])
            yield from blocks_with_forms(below, inner)


def test_every_block_is_closed_at_first_and_lists_every_field_when_it_is_opened():
    walked = list(blocks_with_forms([LifecycleConfig], FORM))
    assert len(walked) > 100
    for blocks, form in walked:
        constant = {"name"} if len(blocks) == 1 and blocks[0] is not LifecycleConfig else set()
        assert set(form["properties"]) == fields_of(blocks) - constant


def test_a_field_tells_its_default_and_its_limits():
    ppo = opened(FORM["properties"]["ppo"])
    assert ppo["properties"]["kl_coef"] == {
        "title": "kl_coef",
        "type": "number",
        "description": "Penalty per nat of KL to the reference, in units of the reward; with 0 no "
        "reference is loaded. Default 0.02, at least 0.",
    }
    assert ppo["properties"]["kl_estimator"]["enum"] == ["k1", "k2", "k3"]


def test_a_union_is_one_block_whose_fields_tell_to_which_names_they_belong():
    loss = opened(opened(FORM["properties"]["dpo"])["properties"]["loss"])["properties"]
    assert next(iter(loss)) == "name"
    assert loss["name"]["enum"][:2] == ["dpo", "robust"]
    assert "`simpo`: Mean log-probabilities and a target margin" in loss["name"]["description"]
    assert loss["gamma"]["description"].startswith("`simpo`: Target margin")
    data = opened(opened(FORM["properties"]["sft"])["properties"]["data"])["properties"]
    assert data["split"]["type"] == "string"  # two names for one source, any for the others


def test_the_page_offers_the_steps_and_takes_the_number_or_alias_of_a_version_as_text():
    assert schema_of(stage)["properties"]["step"]["enum"] == block_names()
    assert schema_of(promote)["properties"]["version"]["type"] == "string"
    given = promote.validate_parameters({"preset": "tiny", "version": 7})  # -p version=7
    assert given["version"] == 7


@pytest.mark.parametrize("flow", FLOWS, ids=lambda f: f.name)
def test_what_no_form_has_reaches_the_flow_which_names_the_nearest_key(flow):
    step = {"step": "ppo"} if flow is stage else {}
    given = flow.validate_parameters({**step, "overrides": {"ppo": {"kl_koef": 1, "steps": "9"}}})
    with pytest.raises(ConfigError) as caught:
        load_config("tiny", given["overrides"])
    assert "ppo.kl_koef: unknown key; did you mean 'kl_coef'" in str(caught.value)
    assert "ppo.steps: Input should be a valid integer (found '9')" in str(caught.value)


@pytest.mark.parametrize("flow", FLOWS, ids=lambda f: f.name)
def test_lines_that_are_added_and_left_empty_change_nothing(flow):
    assert schema_of(flow)["properties"]["changes"]["items"] == {"type": "string"}
    step = {"step": "ppo"} if flow is stage else {}
    for lines in (["ppo.steps=9", None, ""], "ppo.steps=9\n"):
        given = flow.validate_parameters({**step, "changes": lines})
        assert given["changes"] == ("ppo.steps=9",)


def test_lines_are_applied_after_the_form_and_a_wrong_one_is_told_with_the_nearest_key():
    form = {"ppo": {"steps": 7, "kl_coef": 0.5}}
    config = load_config("tiny", with_changes(form, ["ppo.steps=9", "rejection_sft=~"]))
    assert (config.ppo.steps, config.ppo.kl_coef, config.rejection_sft) == (9, 0.5, None)
    with pytest.raises(ConfigError, match="did you mean 'kl_coef'"):
        load_config("tiny", with_changes({}, ["ppo.kl_koef=1"]))
    with pytest.raises(ConfigError, match=r"expected <dotted.key>=<value>, found 'kl_coef'"):
        with_changes({}, ["kl_coef"])


def test_the_form_of_a_deployment_tells_what_its_preset_sets():
    config = load_config("tiny")
    assert config.ppo.reward.name == "reward_model"
    overrides = with_values_of(SCHEMA, "tiny", config)["properties"]["overrides"]
    assert "default" not in overrides  # with the default {} the page would open it
    form = opened(overrides)
    blocks = form["properties"]
    ppo = opened(blocks["ppo"])["properties"]
    assert ppo["kl_coef"]["description"].endswith(f"at least 0. In `tiny`: `{config.ppo.kl_coef}`.")
    assert "In `tiny`" not in ppo["epochs_per_step"]["description"]  # it has the default
    reward = opened(ppo["reward"])["properties"]
    assert reward["name"]["description"].endswith("In `tiny`: `reward_model`.")
    absent = [name for name, block in blocks.items() if "position" in block]
    assert absent == ["feedback", "process_reward", "kto", "distillation"]
    assert blocks["kto"]["description"].endswith("`tiny` has none.")


def test_the_form_of_a_deployment_has_the_fields_of_all_presets_and_nothing_undefined():
    form = with_values_of(SCHEMA, "tiny", load_config("tiny"))
    referred_to = {node["$ref"] for node in nodes(form) if "$ref" in node}
    assert referred_to == {f"#/definitions/{name}" for name in form["definitions"]}
    walked = blocks_with_forms([LifecycleConfig], opened(form["properties"]["overrides"]))
    plain = blocks_with_forms([LifecycleConfig], FORM)
    for (blocks, filled), (_, empty) in zip(walked, plain, strict=True):
        assert list(filled["properties"]) == list(empty["properties"]), blocks


def test_parameters_of_another_kind_are_refused_with_their_name():
    for wrong in ({"preset": 3}, {"overrides": ["ppo"]}, {"force": {"ppo": 1}}, {"changes": 7}):
        with pytest.raises(Exception, match=rf"(?s)invalid parameters.*{next(iter(wrong))}"):
            full_rlhf.validate_parameters({"preset": "tiny", **wrong})
