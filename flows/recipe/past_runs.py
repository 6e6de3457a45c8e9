"""Earlier runs whose reports are in the store: for the index of reports, and to compare configs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.files import write_text
from stages.runtime.store import Store
from tasks.locks import locked
from tasks.report.index_page import ReportLink, render_index
from tasks.versions import ModelVersionRef
from training_core.errors import IntegrityError
from training_core.strict_json import read_object

REMEDY = "delete it; a Retry of its run writes it again"


@dataclass(frozen=True)
class PastRun:
    """A run that has a report.

    Attributes:
        id: of the flow run.
        at: Unix time of the report.
        summary: content of its `summary.json`.
    """

    id: str
    at: float
    summary: Mapping[str, Any]

    @property
    def lifecycle(self) -> str:
        """Prefix of the names of its models."""
        return str(self.summary.get("lifecycle", ""))

    def has_stage(self, key: str) -> bool:
        """Whether one of its steps has this stage key."""
        rows = self.summary.get("rows", ())
        return any(isinstance(row, Mapping) and row.get("key") == key for row in rows)


def past_runs(store: Store) -> list[PastRun]:
    """Return all runs that have a report, newest first; a broken summary is left out."""
    found = []
    for path in (store.root / "reports").glob("*/summary.json"):
        try:
            summary = read_object(path, remedy=REMEDY)
        except (IntegrityError, FileNotFoundError):
            continue
        at = summary.get("at")
        moment = at if isinstance(at, int | float) else path.stat().st_mtime
        found.append(PastRun(path.parent.name, moment, summary))
    return sorted(found, key=lambda run: run.at, reverse=True)


def configs_to_compare(
    store: Store, lifecycle: str, flow_run_id: str, champion: ModelVersionRef | None
) -> dict[str, Mapping[str, Any]]:
    """Return the resolved configs of the champion's run and of the previous run, by a title.

    Args:
        store: has the plans of all runs.
        lifecycle: only its runs are compared.
        flow_run_id: the run that is left out.
        champion: when the run was started; None if there was none.
    """
    runs = [r for r in past_runs(store) if r.lifecycle == lifecycle and r.id != flow_run_id]
    previous = runs[:1]
    made_it = [r for r in runs if champion is not None and r.has_stage(champion.stage_key)][-1:]
    if previous == made_it:
        titles = {"previous run, which made the champion": previous}
    else:
        titles = {"previous run": previous, "run that made the champion": made_it}
    chosen = {title: run for title, found in titles.items() for run in found}
    configs = {title: _config_of(store, run.id) for title, run in chosen.items()}
    return {title: config for title, config in configs.items() if config is not None}


def write_index(store: Store) -> Path:
    """Write the page that lists the reports of all runs, and return its path."""
    folder = store.root / "reports"
    path = folder / "index.html"
    with locked(folder / "index.lock"):  # or a slower flow would leave out the newest report
        links = [_link(r) for r in past_runs(store) if (folder / r.id / "report.html").exists()]
        write_text(path, render_index(links))
    return path


def _link(run: PastRun) -> ReportLink:
    summary = run.summary
    return ReportLink(
        href=f"{run.id}/report.html",
        at=run.at,
        lifecycle=run.lifecycle,
        flow=str(summary.get("flow", "")),
        name=str(summary.get("name", run.id)),
        reward=str(summary.get("reward", "")),
        is_champion=summary.get("is_champion") is True,
        verdict=str(summary.get("verdict", "")),
    )


def _config_of(store: Store, flow_run_id: str) -> Mapping[str, Any] | None:
    path = store.root / "plans" / f"{flow_run_id}.json"
    try:
        config = read_object(path, remedy=REMEDY).get("config")
    except (IntegrityError, FileNotFoundError):
        return None
    return config if isinstance(config, dict) else None
