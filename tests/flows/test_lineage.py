"""`ratchet lineage` and `ratchet taint`: what made a result, and what came of it."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from stages.runtime.store import Store
from stages.runtime.store_graph import StoreGraph
from tasks.attempts import Match
from tasks.gate import GateConfig, judge
from tasks.ledger import Decision, promote
from tasks.registry import Registry
from tests.tasks.real_services import finish_stage

PAIRS = {"name": "files", "path": "/rows/pairs.jsonl", "columns": {}}
WON = judge(
    {
        "judged_prompts": 256.0, "judged_fraction": 1.0, "reward_gain": 0.1,
        "won_prompts": 200.0, "lost_prompts": 56.0,
    },
    GateConfig(),
)  # fmt: skip
HUB = {"name": "hub", "repo": "someone/chats", "revision": "a" * 40}
MIXED = {"name": "mixed", "parts": [{"data": PAIRS}, {"data": HUB}]}


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def made(store):
    """sft → reward_model; sft → dpo → evaluation; and another sft, of which nothing was made."""
    steps: dict = {}

    def finish(step, kind="policy", data=None, stage=None, **parents):
        steps[step] = finish_stage(
            store, step, seed=len(steps), kind=kind, stage=stage or step,
            config={"data": data} if data else {}, finished_at=float(len(steps)),
            parents={role: steps[source].key for role, source in parents.items()},
            cost={"seconds": 61.0}, metrics={"loss": 0.5, "heldout_reward": 0.25},
        )  # fmt: skip

    finish("sft", data=HUB)
    finish("alone", stage="sft", data=HUB | {"repo": "someone/else"})
    finish("reward_model", "reward_model", data=PAIRS, policy="sft")
    finish("dpo", data=MIXED, policy="sft", reference="sft")
    finish("evaluation", "evaluation", policy="dpo", policy_sft="sft")
    return steps


def names(manifests):
    return [manifest.step for manifest in manifests]


def test_a_result_comes_after_all_that_it_was_made_from_and_before_all_that_came_of_it(store, made):
    graph = StoreGraph.of(store)
    assert names(graph.before(made["evaluation"])) == ["sft", "dpo", "evaluation"]
    assert names(graph.before(made["alone"])) == ["alone"]
    assert names(graph.after(made["sft"].key)) == ["reward_model", "dpo", "evaluation"]
    assert names(graph.after(made["dpo"].key, made["alone"].key)) == ["evaluation"]
    assert graph.after(made["evaluation"].key) == []


@pytest.mark.parametrize(
    ("source", "readers"),
    [
        ("someone/chats", ["sft", "dpo"]),
        ("someone/else", ["alone"]),
        ("/rows/pairs.jsonl", ["reward_model", "dpo"]),
        ("pairs.jsonl", ["reward_model", "dpo"]),
        ("pairs", []),
    ],
)
def test_a_dataset_is_known_by_its_hub_id_its_path_and_its_file_name(store, made, source, readers):
    assert names(StoreGraph.of(store).reading(source)) == readers


@pytest.fixture
def asked(store, made, mlflow_uri, tmp_path, monkeypatch):
    """Run `ratchet` with the store and a registry that has the models; dpo is champion."""
    for name, value in {
        "RATCHET_HOME": str(tmp_path / "home"),
        "RATCHET_STORE": str(store.root),
        "MLFLOW_TRACKING_URI": mlflow_uri,
        "RAY_ADDRESS": "http://127.0.0.1:1",
        "COLUMNS": "200",
    }.items():
        monkeypatch.setenv(name, value)
    registry = Registry(mlflow_uri, store)
    lifecycle = f"kin-{tmp_path.name[-12:].replace('_', '-')}"
    versions = {
        step: registry.register(made[step], lifecycle=lifecycle)
        for step in ("sft", "reward_model", "dpo")
    }
    return lifecycle, versions, lambda *words: CliRunner().invoke(app, words)


@pytest.mark.services
def test_the_lineage_of_a_version_names_data_sources_results_and_versions(asked, made):
    lifecycle, versions, ratchet = asked
    shown = ratchet("lineage", f"{lifecycle}/{versions['dpo'].version}")
    assert shown.exit_code == 0, shown.output
    before, after = shown.output.split("made from it")
    assert f"sft/{made['sft'].key[:12]}" in before
    assert f"dpo/{made['dpo'].key[:12]}" in before
    assert f"pairs.jsonl, someone/chats@{'a' * 12}" in before
    assert "sft (policy, reference)" in before
    assert f"{lifecycle}.policy/{versions['sft'].version}" in before
    assert "evaluation" in after
    assert "alone" not in shown.output
    assert "reward_model" not in shown.output  # a sister
    drawn = ratchet("lineage", f"dpo/{made['dpo'].key[:8]}", "--mermaid").output.splitlines()
    key = {step: manifest.key[:12] for step, manifest in made.items()}
    assert drawn[0] == "flowchart LR"
    assert f"  {key['sft']} --> {key['dpo']}" in drawn
    assert f"  {key['dpo']} --> {key['evaluation']}" in drawn
    assert len(drawn) == 1 + 3 + 3 + 1  # the head, nodes, arrows, and which of them was asked for


@pytest.mark.services
def test_taint_finds_all_that_a_dataset_touched_and_whether_a_champion_is_among_it(
    asked, store, mlflow_uri
):
    lifecycle, versions, ratchet = asked
    of_pairs = ratchet("taint", "pairs.jsonl").output
    assert "To be made again, if it changes: reward_model, dpo, evaluation." in of_pairs
    assert "(champion)" not in of_pairs
    match = Match(opponent="none", prompts="heldout", evaluation="e1")
    decision = Decision(based_on=0, evidence=WON, match=match, who="ann", why="a test")
    registry = Registry(mlflow_uri, store)
    promote(registry, f"{lifecycle}.policy", versions["dpo"].version, decision)
    of_pairs = ratchet("taint", "pairs.jsonl").output
    assert f"It has reached {lifecycle}.policy/{versions['dpo'].version} (champion)" in of_pairs
    alone = ratchet("taint", "someone/else").output
    assert "To be made again, if it changes: alone." in alone
    of_result = ratchet("taint", f"{lifecycle}/{versions['dpo'].version}").output
    assert "To be made again, if it changes: dpo, evaluation." in of_result


@pytest.mark.services
def test_two_results_are_compared_by_metrics_configs_and_time(asked, made, store):
    lifecycle, versions, ratchet = asked
    other = finish_stage(
        store, "dpo", seed=77, stage="dpo", config={"data": MIXED, "loss": {"beta": 0.5}},
        parents={"policy": made["reward_model"].key}, cost={"seconds": 9.0},
        metrics={"loss": 0.5, "heldout_reward": 0.75},
    )  # fmt: skip
    first = f"{lifecycle}/{versions['dpo'].version}"
    shown = ratchet("compare", first, f"dpo/{other.key[:8]}")
    assert shown.exit_code == 0, shown.output
    lines = [line.split("│")[1:-1] for line in shown.output.splitlines() if "│" in line]
    cells = {line[0].strip(): [cell.strip() for cell in line[1:]] for line in lines}
    assert cells["heldout_reward"] == ["0.250", "0.750"]
    assert "loss" not in cells  # it is the same
    assert cells["dpo.loss.beta"] == ["not set", "0.5"]
    assert cells["reward_model"] == ["not done", "done"]
    assert cells["in all"] == ["2 min 02 s", "2 min 11 s"]
    assert cells["in the 1 that both have"] == ["1 min 01 s"] * 2
    assert "are the same dpo/" in ratchet("compare", first, f"dpo/{made['dpo'].key[:8]}").output


@pytest.mark.services
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "expected <lifecycle>@<alias> (e.g. tiny@champion)"),
        (
            "dpo/ffffff",
            "expected one finished dpo whose stage key starts with 'ffffff', found none",
        ),
    ],
)
def test_a_result_that_is_not_there_is_an_error_that_says_how_to_name_one(asked, name, said):
    *_, ratchet = asked
    for command in ("lineage", "taint"):
        told = ratchet(command, name)
        assert told.exit_code == 1
        assert said in told.stderr
