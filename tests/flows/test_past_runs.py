"""Reports in a store: which are listed, and with whose configs a run is compared."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from flows.recipe.past_runs import configs_to_compare, past_runs, write_index
from stages.runtime.store import Store
from tasks.versions import ModelVersionRef

CHAMPION = ModelVersionRef(
    name="tiny.policy", version=1, stage="ppo", step="ppo", stage_key="k1", digest="d",
    run_id="", path=Path("none"),
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def add(store: Store, run: str, at: float, key: str, lifecycle: str = "tiny") -> None:
    """A run with a report, whose config is its own name."""
    folder = store.root / "reports" / run
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("page")
    rows = [{"step": "ppo", "key": key}]
    summary = {"lifecycle": lifecycle, "at": at, "rows": rows, "name": f"run {run}"}
    (folder / "summary.json").write_text(json.dumps(summary))
    plan = store.root / "plans" / f"{run}.json"
    plan.parent.mkdir(exist_ok=True)
    plan.write_text(json.dumps({"config": {"name": run}}))


def test_a_run_is_compared_with_the_previous_one_and_the_first_that_had_the_champion(store):
    add(store, "made-it", 1.0, "k1")
    add(store, "reused-it", 2.0, "k1")
    add(store, "previous", 3.0, "k2")
    add(store, "other", 4.0, "k1", lifecycle="else")
    add(store, "now", 5.0, "k3")  # of an earlier try

    assert configs_to_compare(store, "tiny", "now", CHAMPION) == {
        "previous run": {"name": "previous"},
        "run that made the champion": {"name": "made-it"},
    }
    assert configs_to_compare(store, "tiny", "now", None) == {"previous run": {"name": "previous"}}
    assert configs_to_compare(store, "new", "now", None) == {}


def test_a_previous_run_that_made_the_champion_is_compared_once(store):
    add(store, "before", 1.0, "k0")
    add(store, "made-it", 2.0, "k1")

    assert configs_to_compare(store, "tiny", "now", CHAMPION) == {
        "previous run, which made the champion": {"name": "made-it"}
    }


def test_a_run_whose_config_is_gone_is_not_compared(store):
    add(store, "previous", 3.0, "k2")
    (store.root / "plans" / "previous.json").unlink()

    assert configs_to_compare(store, "tiny", "now", None) == {}


def test_the_list_has_every_whole_report_newest_first(store):
    for number, run in enumerate(("a", "b", "broken", "unwritten")):
        add(store, run, float(number), "k")
    (store.root / "reports" / "broken" / "summary.json").write_text("{")
    (store.root / "reports" / "unwritten" / "report.html").unlink()

    path = write_index(store)

    assert path == store.root / "reports" / "index.html"
    assert re.findall(r'href="([^"]*)">([^<]*)<', path.read_text()) == [
        ("b/report.html", "run b"),
        ("a/report.html", "run a"),
    ]
    assert [run.id for run in past_runs(store)] == ["unwritten", "b", "a"]
