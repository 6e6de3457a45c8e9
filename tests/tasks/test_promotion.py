"""Promotions as flow runs make them: real Prefect tasks, a real MLflow."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from functools import cache, partial

import pytest
from prefect import flow
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.config.presets import load_config
from flows.local_services.state import load_records
from flows.recipe.run import Recipe
from stages.runtime.ray_cluster import RayCluster
from tasks.connections import Connections
from tasks.ledger import history
from tasks.refs import StageRef, ref_of
from tasks.registry import Registry
from tasks.registry_tasks import evidence_metrics, force, read_champion, roll_back
from tests.flows.only_prefect import only_prefect
from training_core.errors import ConfigError

pytestmark = pytest.mark.services

COST = {"seconds": 1.0}


@pytest.fixture(scope="module", autouse=True)
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Prefect server; not its test harness, which now and then waits for ever at its end."""
    home = tmp_path_factory.mktemp("home")
    with only_prefect(home):
        url = load_records(home).services["prefect"].url
        with temporary_settings({PREFECT_API_URL: url}):
            yield


def recipe_of(registry: Registry, lifecycle: str) -> Recipe:
    config = load_config("tiny").model_copy(update={"name": lifecycle})
    nowhere = RayCluster("http://127.0.0.1:1")
    return Recipe("promote", config, Connections(registry.store, nowhere, registry), (), None)


@pytest.fixture
def evaluation(finish):
    """Finish an evaluation by hand, once for each number of wins."""
    return cache(partial(evaluation_of, finish))


def evaluation_of(finish, wins: int) -> StageRef:
    """An evaluation of one prompt, whose metrics tell of a hundred."""
    metrics = {
        "won_prompts": float(wins),
        "lost_prompts": float(100 - wins),
        "judged_prompts": 100.0,
        "judged_fraction": 1.0,
        "reward_gain": 0.1,
        "kl_to_baseline": 1.0,
    }
    row = {"prompt_id": "1", "response": "tea", "reward": 1.0}
    rows = [row | {"policy": name} for name in ("policy", "baseline")]
    tokens = {name: {"response_tokens": 3.0, "wins": wins} for name in ("policy", "baseline")}
    files = {
        "summary.json": json.dumps(tokens),
        "samples.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
    }
    made = finish(
        "evaluation", seed=wins, kind="evaluation", files=files, metrics=metrics, cost=COST
    )
    return ref_of(made, "evaluation", is_reused=True)


def test_who_and_why_reach_the_ledger_and_the_recipe_knows_the_verdict(
    registry, finish, lifecycle, evaluation
):
    recipe = recipe_of(registry, lifecycle)
    candidate = ref_of(finish("sft", cost=COST), "sft", is_reused=True)

    @flow
    def decide(wins: int) -> bool:
        against_sft = evaluation(wins)
        return recipe.promote_if_better(
            candidate, against_sft, candidate, who="ann", why="it is polite"
        )

    assert decide(40) is False
    assert not recipe.is_champion
    assert not recipe.verdict.passed
    assert recipe.against == "the first policy"
    assert history(registry, recipe.policy_name) == []
    (refused,) = registry.models.entries(f"{recipe.policy_name}.promotions")
    assert (refused.tags["verdict"], refused.tags["attempt"]) == ("hold", "1")
    assert (refused.tags["decided_by"], refused.tags["reason"]) == ("ann", "it is polite")

    assert decide(90) is True
    assert recipe.verdict.attempt == 2
    assert recipe.is_champion
    assert recipe.verdict.passed
    assert recipe.against == "the first policy"
    (entry,) = history(registry, recipe.policy_name)
    assert (entry.decided_by, entry.reason) == ("ann", "it is polite")

    assert decide(0) is True  # it is champion already, so nobody asks the gate
    assert len(history(registry, recipe.policy_name)) == 1


def test_a_later_champion_must_beat_the_champion_and_not_lose_to_sft(evaluation):
    against_sft, against_champion = evaluation(70), evaluation(80)
    against_sft.metrics.update({"win_rate": 0.7, "kl_to_baseline": 2.0})
    first = evidence_metrics(against_sft, None)
    assert (first["won_prompts"], first["kl_to_reference"]) == (70, 2.0)
    assert "win_rate_over_sft" not in first
    later = evidence_metrics(against_sft, against_champion)
    assert (later["won_prompts"], later["win_rate_over_sft"]) == (80, 0.7)
    assert later["kl_to_reference"] == 2.0  # to the SFT policy, not to the champion
    del against_sft.metrics["kl_to_baseline"]  # it tokenises differently
    assert "kl_to_reference" not in evidence_metrics(against_sft, against_champion)


def test_the_champion_is_read_and_rolled_back_across_a_short_outage(
    registry, finish, lifecycle, mlflow_server, evaluation
):
    name = f"{lifecycle}.policy"
    recipe = recipe_of(registry, lifecycle)
    candidate = ref_of(finish("sft", cost=COST), "sft", is_reused=True)

    @flow
    def decide() -> bool:
        return recipe.promote_if_better(candidate, evaluation(90), candidate)

    @flow
    def go_back() -> int:
        based_on, champion = read_champion(recipe.connections, name)
        roll_back(recipe.connections, name, champion.version, based_on=based_on, who="b", why="c")
        return champion.version

    assert decide()
    mlflow_server.stop()
    restart = threading.Thread(target=lambda: (time.sleep(1), mlflow_server.start()))
    restart.start()
    try:
        assert go_back() == 1
    finally:
        restart.join()
    first, second = history(registry, name)
    assert (first.decided_by, first.reason) == ("promote", "promote: beats the first policy")
    assert (second.verdict, second.decided_by) == ("rollback", "b")


def test_a_forced_promotion_needs_a_name_and_a_reason_and_the_ledger_has_both(
    registry, finish, lifecycle
):
    name = f"{lifecycle}.policy"
    recipe = recipe_of(registry, lifecycle)
    version = registry.register(finish("sft", cost=COST), lifecycle=lifecycle).version

    @flow
    def insist(who: str, why: str) -> None:
        force(recipe.connections, name, version, based_on=0, who=who, why=why)

    with pytest.raises(ConfigError, match=r"a forced promotion needs .*; found no reason"):
        insist("ann", " ")
    assert history(registry, name) == []
    insist("ann", "the judge is down")
    (entry,) = history(registry, name)
    assert (entry.verdict, entry.decided_by, entry.reason) == (
        "forced",
        "ann",
        "the judge is down",
    )
    assert registry.models.aliases(name)["champion"] == version
