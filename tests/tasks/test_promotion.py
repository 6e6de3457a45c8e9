"""Promotions as flow runs make them: real Prefect tasks, a real MLflow."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from prefect import flow
from prefect.testing.utilities import prefect_test_harness

from flows.config.presets import load_config
from flows.recipe.run import Recipe
from stages.runtime.ray_cluster import RayCluster
from tasks.connections import Connections
from tasks.ledger import history
from tasks.refs import StageRef, ref_of
from tasks.registry import Registry
from tasks.registry_tasks import read_champion, roll_back

pytestmark = pytest.mark.services

COST = {"seconds": 1.0}


@pytest.fixture(scope="module", autouse=True)
def prefect() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=120):
        yield


def recipe_of(registry: Registry, lifecycle: str) -> Recipe:
    config = load_config("tiny").model_copy(update={"name": lifecycle})
    nowhere = RayCluster("http://127.0.0.1:1")
    return Recipe("promote", config, Connections(registry.store, nowhere, registry), (), None)


def evaluation(refs_like: StageRef, win_rate_low: float) -> StageRef:
    metrics = {"win_rate_low": win_rate_low, "kl_to_baseline": 1.0, "finished_fraction": 1.0}
    update = {"kind": "evaluation", "step": "evaluation", "metrics": metrics}
    return refs_like.model_copy(update=update)


def test_who_and_why_reach_the_ledger_and_the_recipe_knows_the_verdict(registry, finish, lifecycle):
    recipe = recipe_of(registry, lifecycle)
    candidate = ref_of(finish("sft", cost=COST), "sft", is_reused=True)

    @flow
    def decide(win_rate_low: float) -> bool:
        against_sft = evaluation(candidate, win_rate_low)
        return recipe.promote_if_better(
            candidate, against_sft, candidate, who="ann", why="it is polite"
        )

    assert decide(0.4) is False
    assert (recipe.is_champion, recipe.verdict.passed, recipe.against) == (False, False, "SFT")
    assert history(registry, recipe.policy_name) == []

    assert decide(0.6) is True
    assert (recipe.is_champion, recipe.verdict.passed, recipe.against) == (True, True, "SFT")
    (entry,) = history(registry, recipe.policy_name)
    assert (entry.decided_by, entry.reason) == ("ann", "it is polite")

    assert decide(0.0) is True  # it is champion already, so nobody asks the gate
    assert len(history(registry, recipe.policy_name)) == 1


def test_the_champion_is_read_and_rolled_back_across_a_short_outage(
    store, finish, lifecycle, own_server
):
    own_server.start()
    registry = Registry(own_server.uri, store)
    name = f"{lifecycle}.policy"
    recipe = recipe_of(registry, lifecycle)
    candidate = ref_of(finish("sft", cost=COST), "sft", is_reused=True)

    @flow
    def decide() -> bool:
        return recipe.promote_if_better(candidate, evaluation(candidate, 0.6), candidate)

    @flow
    def go_back() -> int:
        based_on, champion = read_champion(recipe.connections, name)
        roll_back(recipe.connections, name, champion.version, based_on=based_on, who="b", why="c")
        return champion.version

    assert decide()
    own_server.stop()
    restart = threading.Thread(target=lambda: (time.sleep(1), own_server.start()))
    restart.start()
    try:
        assert go_back() == 1
    finally:
        restart.join()
    first, second = history(registry, name)
    assert (first.decided_by, first.reason) == ("promote", "promote: beats the SFT policy")
    assert (second.verdict, second.decided_by) == ("rollback", "b")
