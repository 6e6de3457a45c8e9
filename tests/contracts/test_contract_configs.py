"""Every field is marked semantic or operational; every preset and stage page keeps its contract."""

import importlib
import inspect
import re
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from prefect.utilities.callables import parameter_schema
from pydantic import BaseModel, ValidationError

from flows.config.lifecycle_config import LifecycleConfig, Overrides, RecipeConfig
from flows.config.presets import ROOT, load_config, preset_names
from flows.full_rlhf import full_rlhf
from flows.iterative_dpo import iterative_dpo
from flows.promote import promote
from flows.single_stage import stage
from stages.catalog import STAGES, find_stage, stage_of
from stages.configs.block import Block, StageConfig
from stages.configs.loss_config import PairLossConfig
from stages.configs.ppo_config import PpoConfig
from stages.configs.sampling_config import GroupSamplingConfig
from stages.configs.training_config import BaseOptimizerConfig
from stages.runtime.stage_key import semantic_part
from training_core.errors import ConfigError


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Every model that an annotation mentions, through unions and containers."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for argument in get_args(annotation) for m in models_in(argument)]


def reachable(
    model: type[BaseModel], seen: set[type[BaseModel]] | None = None
) -> set[type[BaseModel]]:
    """`model` and all models below it."""
    seen = set() if seen is None else seen
    if model not in seen:
        seen.add(model)
        for field in model.model_fields.values():
            for below in models_in(field.annotation):
                reachable(below, seen)
    return seen


BLOCKS = sorted(
    {
        block
        for root in (LifecycleConfig, *(spec.config for spec in STAGES.values()))
        for block in reachable(root)
    },
    key=lambda m: m.__qualname__ + m.__module__,
)
FIELDS = [(b, name) for b in BLOCKS for name in b.model_fields]


def test_the_walk_reaches_the_depths():
    names = {b.__name__ for b in BLOCKS}
    assert {
        "LifecycleConfig",
        "DpoLossConfig",
        "IpoLossConfig",
        "AdamWConfig",
        "MuonConfig",
        "DeepSpeedEngineConfig",
        "HubDataConfig",
        "ResourcesConfig",
        "GateConfig",
    } <= names
    assert len(FIELDS) > 100


def subclasses(block: type[BaseModel]) -> set[type[BaseModel]]:
    return {s for c in block.__subclasses__() for s in {c} | subclasses(c)}


def test_every_block_of_the_floors_is_reached():
    ours = {
        b for b in subclasses(Block) if b.__module__.split(".")[0] in ("flows", "stages", "tasks")
    }
    assert ours - set(BLOCKS) == {
        StageConfig,
        GroupSamplingConfig,
        BaseOptimizerConfig,
        PairLossConfig,
        RecipeConfig,
    }  # the bases of others


@pytest.mark.parametrize(("block", "name"), FIELDS, ids=lambda x: getattr(x, "__name__", x))
def test_every_field_is_semantic_or_operational_and_says_what_it_is(block, name):
    field = block.model_fields[name]
    extra = field.json_schema_extra
    assert isinstance(extra, dict), (
        f"{block.__name__}.{name} is neither semantic() nor operational()"
    )
    assert isinstance(extra["semantic"], bool)
    assert field.description, f"{block.__name__}.{name} has no description"


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: b.__name__)
def test_every_block_is_frozen_and_knows_its_keys(block):
    assert issubclass(block, Block)
    assert block.model_config["frozen"]
    assert block.model_config["extra"] == "forbid"


def test_an_unclassified_field_would_be_seen():
    class Forgetful(Block):
        number: int = 3

    assert Forgetful.model_fields["number"].json_schema_extra is None
    assert semantic_part(Forgetful()) == {}  # and would be left out of the key, silently


@pytest.mark.parametrize("spec", STAGES.values(), ids=lambda s: s.name)
def test_every_stage_page_has_a_config_and_a_run_with_the_contracts_arguments(spec):
    page = importlib.import_module(f"stages.{spec.name}")
    assert issubclass(spec.config, StageConfig)
    assert stage_of(spec.config.model_construct()) is spec
    assert list(inspect.signature(page.run).parameters) == ["config", "inputs", "context"]
    assert page.run.__doc__
    assert page.__doc__
    assert spec.version >= 1
    assert find_stage(spec.name) is spec
    assert not set(spec.required) & set(spec.optional)


def test_an_unknown_stage_names_the_nearest():
    with pytest.raises(ConfigError, match="unknown stage 'ddpo'; did you mean 'dpo'"):
        find_stage("ddpo")


@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_parses_and_comes_back_from_its_own_dump(preset):
    config = load_config(preset)
    assert config.name == preset
    assert LifecycleConfig.model_validate(config.model_dump(mode="json")) == config


def test_there_are_presets():
    assert {"tiny", "tinystories"} <= set(preset_names())


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(ConfigError, match=r"no preset 'tinny'.*did you mean 'tiny'"):
        load_config("tinny")


@pytest.mark.parametrize(
    ("overrides", "path", "nearest"),
    [
        ({"dpo": {"training": {"epoch": 2}}}, "dpo.training.epoch", "epochs"),
        (
            {"ppo": {"policy_optimizer": {"schedul": 1}}},
            "ppo.policy_optimizer.adamw.schedul",
            "schedule",
        ),
        ({"dpo": {"loss": {"betta": 1}}}, "dpo.loss.dpo.betta", "beta"),
        ({"evalution": {}}, "evalution", "evaluation"),
    ],
)  # fmt: skip
def test_an_unknown_key_names_the_nearest_known_one(overrides, path, nearest):
    with pytest.raises(ConfigError, match=rf"{path}: unknown key; did you mean '{nearest}'"):
        load_config("tiny", overrides)


def unions(model: type[BaseModel], path: str = "") -> list[tuple[str, list[str]]]:
    """Dotted path, as an error writes it, and names of every union of blocks below `model`."""
    found = []
    for field, info in model.model_fields.items():
        below = models_in(info.annotation)
        named = [m for m in below if "name" in m.model_fields and len(below) > 1]
        if named:
            found.append((f"{path}{field}", [m.model_fields["name"].default for m in named]))
        for member in below:
            step = f"{field}.{member.model_fields['name'].default}" if named else field
            place = f"{path}{step}.0." if get_origin(info.annotation) is tuple else f"{path}{step}."
            found += unions(member, place)
    return found


UNIONS = unions(LifecycleConfig)


def at(path: str, value: Any) -> dict[str, Any]:
    """Nest `value` at a path of an error; a list becomes a list of one, a member its `name`."""
    head, _, rest = path.partition(".")
    if not rest:
        return {head: value}
    return {head: inside(rest, value)}


def inside(path: str, value: Any) -> Any:
    head, _, rest = path.partition(".")
    if head == "0":
        return [inside(rest, value)]
    if rest and any(head in names for _, names in UNIONS):  # the member of a union
        return {"name": head, **at(rest, value)}
    return at(path, value)


def test_the_walk_reaches_every_kind_of_union():
    assert {
        "ppo.reward",
        "evaluation.reward",
        "rejection_sampling.reward",
        "rejection_sampling.select",
        "sft.base",
        "sft.data",
        "sft.data.mixed.parts.0.data",
        "sft.training.optimizer",
        "sft.training.engine",
        "ppo.policy_optimizer",
        "dpo.loss",
    } <= {path for path, _ in UNIONS}
    assert len(UNIONS) > 30


@pytest.mark.parametrize(("path", "names"), UNIONS, ids=[path for path, _ in UNIONS])
def test_a_wrong_name_in_a_union_names_the_nearest_and_all_there_are(path, names):
    there_are = f"there are: {', '.join(names)}"
    longest = max(names, key=len)
    with pytest.raises(ConfigError) as caught:
        load_config("tiny", at(path, {"name": f"{longest}x"}))
    said = f"  {path}: unknown name '{longest}x'; did you mean '{longest}'? {there_are}"
    assert said in str(caught.value).splitlines()
    with pytest.raises(ConfigError) as caught:
        load_config("tiny", at(path, {"name": "§"}))
    assert f"  {path}: unknown name '§'; {there_are}" in str(caught.value).splitlines()


def test_a_missing_name_lists_the_names_and_so_does_a_bare_word():
    data = {"name": "mixed", "parts": [{"data": {"size": 3}}]}
    with pytest.raises(ConfigError) as caught:
        load_config("tiny", {"sft": {"data": data}, "ppo": {"reward": "cafe"}})
    said = str(caught.value).splitlines()
    rewards = "there are: cafe, lexicon, reward_model, python"
    assert "  sft.data.mixed.parts.0.data: `name` is missing; there are: cafe, files, hub" in said
    assert f"  ppo.reward: expected a block with `name`, found 'cafe'; {rewards}" in said


def test_a_value_out_of_range_is_named_with_what_was_found():
    with pytest.raises(ConfigError, match=r"dpo\.training\.epochs: .*greater than 0 \(found -1\)"):
        load_config("tiny", {"dpo": {"training": {"epochs": -1}}})


def test_an_override_changes_its_field_and_no_other():
    plain = load_config("tiny")
    changed = load_config("tiny", {"ppo": {"kl_coef": 0.5}})
    assert changed.ppo.kl_coef == 0.5
    assert changed.model_copy(update={"ppo": plain.ppo}) == plain
    assert changed.ppo.model_copy(update={"kl_coef": plain.ppo.kl_coef}) == plain.ppo


def test_the_form_of_overrides_has_every_field_and_asks_for_none():
    assert set(Overrides.model_fields) == set(LifecycleConfig.model_fields)
    assert Overrides().model_dump(exclude_unset=True) == {}
    form = Overrides.model_validate({"ppo": {"policy_optimizer": {"learning_rate": 1e-4}}})
    config = load_config("tiny", form.model_dump(exclude_unset=True))
    assert config.ppo.policy_optimizer.learning_rate == 1e-4
    assert config.ppo.policy_optimizer.schedule == "constant"  # from the preset, not the default


@pytest.mark.parametrize("flow", [full_rlhf, iterative_dpo, promote, stage], ids=lambda f: f.name)
def test_the_form_in_prefect_lists_every_field_and_lets_the_flow_name_the_misspelled_ones(flow):
    form = parameter_schema(flow.fn).definitions
    for block in (LifecycleConfig, PpoConfig):
        name = f"{block.__module__.split('.')[-1]}_{block.__name__}"
        assert set(form[name]["properties"]) == set(block.model_fields)
    assert {block["additionalProperties"] for block in form.values()} == {True}
    overrides = Overrides.model_validate({"ppo": {"kl_koef": 1}}).model_dump(exclude_unset=True)
    with pytest.raises(ConfigError, match=r"ppo\.kl_koef: unknown key; did you mean 'kl_coef'"):
        load_config("tiny", overrides)


FILE = {"name": "files", "path": "x.jsonl"}
SCRATCH = {"name": "scratch"}


@pytest.mark.parametrize(
    ("preset", "key", "value", "why"),
    [
        ("tiny", "dpo.data", FILE, "its pairs come from `preference_pairs`; drop it"),
        ("tiny", "rejection_sft.data", FILE, "its data comes from `rejection_sampling`; drop it"),
        ("tiny", "rejection_sft.base", SCRATCH, "it starts from `sft`; drop it"),
        ("tinystories", "reward_model.data", FILE, "its pairs come from `feedback`; drop one"),
    ],
)
def test_data_that_the_graph_gives_too_is_refused(preset, key, value, why):
    block, field = key.split(".")
    with pytest.raises(ConfigError, match=re.escape(f"  {key} is set, but {why}")):
        load_config(preset, {block: {field: value}})


@pytest.mark.parametrize("key", ["sft.base", "sft.data", "reward_model.data"])
def test_data_that_nobody_gives_is_asked_for(key):
    plain = load_config("tiny").model_dump()
    block, field = key.split(".")
    plain[block][field] = None
    with pytest.raises(ValidationError, match=f"{key} is not set, but .*set"):
        LifecycleConfig.model_validate(plain)


def test_unions_are_told_apart_by_name():
    for block in BLOCKS:
        for name, field in block.model_fields.items():
            members = [a for a in union_members(field.annotation) if models_in(a)]
            if len(members) > 1:
                names = [m.model_fields["name"].default for m in members]
                assert len(set(names)) == len(names), f"{block.__name__}.{name}"


def union_members(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Annotated:
        return union_members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(m for a in get_args(annotation) for m in union_members(a))
    return (annotation,)


def test_the_data_folder_is_the_overrides_then_the_environments_then_the_presets(monkeypatch):
    monkeypatch.delenv("RATCHET_SHARED", raising=False)
    assert load_config("tinystories").ppo.prompts.path.startswith(
        str((ROOT.parent / "shared").resolve())
    )
    monkeypatch.setenv("RATCHET_SHARED", "/elsewhere")
    assert load_config("tinystories").ppo.prompts.path.startswith("/elsewhere/data/text/")
    chosen = load_config("tinystories", {"data_root": "/mine"})
    assert chosen.ppo.prompts.path.startswith("/mine/text/")
