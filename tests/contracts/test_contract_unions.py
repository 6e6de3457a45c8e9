"""Blocks that are told apart by their `name`, e.g. rewards and losses."""

from typing import Any, get_origin

import pytest
from pydantic import BaseModel

from flows.config.lifecycle_config import LifecycleConfig
from flows.config.presets import load_config
from stages.configs.explanation import models_in
from training_core.errors import ConfigError


def unions(model: type[BaseModel], path: str = "") -> list[tuple[str, list[str]]]:
    """Dotted path, as an error writes it, and names of every union of blocks below `model`."""
    found = []
    for field, info in model.model_fields.items():
        if field == "steps":  # the blocks of the stages again
            continue
        below = models_in(info.annotation)
        named = [m for m in below if "name" in m.model_fields and len(below) > 1]
        if named:
            found.append((f"{path}{field}", [m.model_fields["name"].default for m in named]))
        for member in below:
            step = f"{field}.{member.model_fields['name'].default}" if named else field
            key = {tuple: "0.", dict: "mine."}.get(get_origin(info.annotation), "")
            place = f"{path}{step}.{key}"
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
        "ppo.reward.weighted.parts.0.reward",
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
    rewards = "there are: cafe, lexicon, reward_model, external_reward_model, python, "
    assert "  sft.data.mixed.parts.0.data: `name` is missing; there are: cafe, files, hub" in said
    (reward,) = (line for line in said if line.startswith("  ppo.reward: "))
    assert reward.startswith(f"  ppo.reward: expected a block with `name`, found 'cafe'; {rewards}")
    assert reward.endswith("weighted, combined")
