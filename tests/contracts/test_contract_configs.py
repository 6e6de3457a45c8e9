"""Every field is marked semantic or operational; every preset and stage page keeps its contract."""

import importlib
import inspect
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from flows.config.lifecycle_config import LifecycleConfig
from flows.config.own_steps import _OneStage
from flows.config.presets import ROOT, load_config, preset_names
from stages.catalog import STAGES, find_stage, stage_of
from stages.configs.advantage_config import BaseAdvantageConfig
from stages.configs.block import Block, StageConfig, TableEntryConfig
from stages.configs.correction_config import BaseCorrectionConfig
from stages.configs.loss_config import PairLossConfig
from stages.configs.placement_config import ProcessConfig
from stages.configs.policy_loss_config import BasePolicyLossConfig
from stages.configs.ppo_fields import BasePpoConfig
from stages.configs.reward_config import FunctionConfig
from stages.configs.reward_service_config import JudgeConfig, ServiceConfig
from stages.configs.sampling_config import GroupSamplingConfig
from stages.configs.trained_stage import TrainedStageConfig
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
        b
        for b in subclasses(Block)
        if b.__module__.split(".")[0] in ("flows", "stages", "tasks")
        and not b.__module__.startswith("flows.cli.")  # those are of commands, not of presets
    }
    assert ours - set(BLOCKS) == {
        StageConfig,
        TableEntryConfig,
        TrainedStageConfig,
        GroupSamplingConfig,
        FunctionConfig,
        ServiceConfig,
        JudgeConfig,
        BaseOptimizerConfig,
        PairLossConfig,
        BaseAdvantageConfig,
        BasePolicyLossConfig,
        BaseCorrectionConfig,
        BasePpoConfig,
        ProcessConfig,
        _OneStage,
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


def test_a_value_out_of_range_is_named_with_what_was_found():
    with pytest.raises(ConfigError, match=r"dpo\.training\.epochs: .*greater than 0 \(found -1\)"):
        load_config("tiny", {"dpo": {"training": {"epochs": -1}}})


def test_an_override_changes_its_field_and_no_other():
    plain = load_config("tiny")
    changed = load_config("tiny", {"ppo": {"kl_coef": 0.5}})
    assert changed.ppo.kl_coef == 0.5
    assert changed.model_copy(update={"ppo": plain.ppo}) == plain
    assert changed.ppo.model_copy(update={"kl_coef": plain.ppo.kl_coef}) == plain.ppo


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
