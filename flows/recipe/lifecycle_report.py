"""The end of a lifecycle: its report as a page, in MLflow and among the flow run's artifacts."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run

from flows.recipe.run import Recipe
from stages.files import write_text
from tasks.connections import Connections
from tasks.report.formatting import duration, label
from tasks.report.lifecycle import About, Lifecycle, Outcome, gather
from tasks.report.page import render
from training_core.errors import TransientError


def publish_report(recipe: Recipe) -> dict[str, Any]:
    """Write the report of a flow run whose steps are all done.

    Without MLflow the page is written nevertheless, and a Retry of the run puts it there.

    Returns:
        What `summary.json` beside the page says: `lifecycle`, `rows` (a dict per step: step, stage,
        key, version, result, seconds, reused), `is_champion` (of this run's policy), `report` (its
        address in MLflow; None while that is away) and `report_file`.
    """
    refs = list(recipe.refs.values())
    story = gather(recipe.connections.store, refs, recipe.config, _about(recipe), _outcome(recipe))
    url, path = report(
        story.about, render(story), _metrics(story), _rows(story), recipe.connections
    )
    summary = {
        "lifecycle": recipe.config.name,
        "rows": _rows(story),
        "is_champion": recipe.is_champion,
        "report": url,
        "report_file": str(path),
    }
    write_text(path.with_name("summary.json"), json.dumps(summary, indent=2))
    return summary


@task(name="report", task_run_name="report", cache_policy=NO_CACHE)
def report(
    about: About,
    page: str,
    metrics: dict[str, float],
    rows: list[dict[str, Any]],
    connections: Connections,
) -> tuple[str | None, Path]:
    """Write the page, show it in MLflow, and leave the table with the flow run.

    Args:
        about: the flow run.
        page: the HTML.
        metrics: for the lifecycle's MLflow run.
        rows: the table.
        connections: where to.

    Returns:
        The page's address in MLflow (None while that is away) and its file.
    """
    path = connections.store.root / "reports" / about.flow_run_id / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page)
    url = None
    try:
        url = connections.registry.runs.log_report(
            about.lifecycle, about.flow, about.flow_run_id, page=path, metrics=metrics
        )
    except TransientError as error:
        get_run_logger().warning("the report is in %s, but not in MLflow: %s", path, error)
    else:
        create_link_artifact(url, link_text="the lifecycle's report", key="lifecycle-report-link")
    link = f"[The whole report]({url})" if url else f"The whole report: `{path}`"
    text = f"{_table(rows)}\n\n{link}"
    create_markdown_artifact(text, key="lifecycle-report", description=about.lifecycle)
    return url, path


def _about(recipe: Recipe) -> About:
    champion = recipe.champion
    outside = {champion.stage_key: f"champion_{champion.version}"} if champion else {}
    return About(recipe.config.name, recipe.flow, str(flow_run.id), time.time(), outside)


def _outcome(recipe: Recipe) -> Outcome:
    newest = [ref for ref in recipe.refs.values() if ref.kind == "policy"][-1]
    return Outcome(recipe.is_champion, newest.model_version, recipe.verdict, recipe.against)


def _metrics(story: Lifecycle) -> dict[str, float]:
    judged = story.judged
    rewards = {f"reward/{s.step}": s.reward for s in judged.scores} if judged else {}
    errors = {f"reward_stderr/{s.step}": s.stderr for s in judged.scores} if judged else {}
    rates = (
        {f"win_rate/{s.step}": s.metrics.get("win_rate") for s in judged.scores} if judged else {}
    )
    measured = {k: v for k, v in (rewards | errors | rates).items() if v is not None}
    seconds = sum(step.ref.seconds for step in story.steps)
    return {**measured, "seconds": seconds, "is_champion": float(story.outcome.is_champion)}


def _rows(story: Lifecycle) -> list[dict[str, Any]]:
    return [
        {
            "step": step.ref.step,
            "stage": step.ref.stage,
            "key": step.ref.key,
            "version": step.ref.model_version,
            "result": step.result,
            "seconds": round(step.ref.seconds, 1),
            "reused": step.ref.is_reused,
        }
        for step in story.steps
    ]


def _table(rows: list[dict[str, Any]]) -> str:
    head = ["| step | result | version | time | |", "|---|---|---|---|---|"]
    lines = [
        f"| {label(row['step'])} | {row['result']} | {row['version'] or '-'} "
        f"| {duration(row['seconds'])} | {'reused' if row['reused'] else 'run'} |"
        for row in rows
    ]
    return "\n".join(head + lines)
