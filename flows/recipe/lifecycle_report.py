"""The lifecycle's report: a page, an artifact in MLflow and an artifact of the flow run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TypedDict

from prefect import get_run_logger, task
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.utilities.urls import url_for

from flows.recipe.past_runs import configs_to_compare, write_index
from flows.recipe.run import Recipe
from stages.files import write_text
from stages.safe_text import redacted
from tasks.connections import Connections
from tasks.decisions import RELATIONS
from tasks.formatting import duration, label, with_error
from tasks.mlflow_pages import version_page
from tasks.registry import FlowRun
from tasks.report.lifecycle import About, Lifecycle, Outcome, StepPages, gather
from tasks.this_run import this_flow_run
from tasks.versions import MODEL_SUFFIX
from training_core.errors import TransientError


class StepRow(TypedDict):
    """One finished step, as a row of the table.

    Attributes:
        step: its name in the flow.
        stage: the stage's name.
        key: the stage key.
        version: number in the registry, for models.
        result: what it improved, in words.
        seconds: wall-clock time of the attempt that made it.
        reused: whether it was found finished.
    """

    step: str
    stage: str
    key: str
    version: int | None
    result: str
    seconds: float
    reused: bool


class LifecycleSummary(TypedDict):
    """What `summary.json` beside the page says.

    Attributes:
        lifecycle: name of the preset's models.
        flow: the flow's name.
        name: of the run.
        at: Unix time of the report.
        reward: held-out rewards of the first and the last policy; empty without an evaluation.
        rows: one per step, in the flow's order.
        is_champion: whether this run's policy is champion.
        decision: `promote`, `hold` or `reject`; empty if nothing was decided, or not yet.
        verdict: why it is champion or is not, in words.
        report: the page's address in MLflow; None while MLflow does not answer.
        report_file: the page.
    """

    lifecycle: str
    flow: str
    name: str
    at: float
    reward: str
    rows: list[StepRow]
    is_champion: bool
    decision: str
    verdict: str
    report: str | None
    report_file: str


def publish_report(recipe: Recipe) -> LifecycleSummary:
    """Write the report of a flow run whose steps are all done.

    If MLflow does not answer, the page is written all the same, and a Retry of the run uploads it.
    """
    from tasks.report.page import render  # noqa: PLC0415 - matplotlib, which no start needs

    refs, store, run = list(recipe.refs.values()), recipe.connections.store, this_flow_run()
    about = _about(recipe, run)
    past = configs_to_compare(store, recipe.config.name, run.id, recipe.champion)
    story = gather(store, refs, recipe.config, about, _outcome(recipe), compared=past)
    rows, decided = _rows(story), recipe.decision.verdict if recipe.decision else ""
    note = f"{_note(story)}\n\n**{decided.capitalize() or 'Not decided'}**: {_in_words(recipe)}."
    url, path = report(
        run, about.lifecycle, render(story), _metrics(story), rows, note, recipe.connections
    )
    summary: LifecycleSummary = {
        "lifecycle": recipe.config.name,
        "flow": run.flow,
        "name": run.name,
        "at": about.at,
        "reward": _reward(story),
        "rows": rows,
        "is_champion": recipe.is_champion,
        "decision": decided,
        "verdict": _in_words(recipe),
        "report": url,
        "report_file": str(path),
    }
    write_text(path.with_name("summary.json"), json.dumps(summary, indent=2))
    write_index(store)
    return summary


def publish_so_far(recipe: Recipe) -> str:
    """Write the report before a person decides, and return its address, or else its file."""
    summary = publish_report(recipe)
    return summary["report"] or summary["report_file"]


@task(name="report", task_run_name="report", cache_policy=NO_CACHE)
def report(  # noqa: PLR0917 - Prefect shows each as an input of the task
    run: FlowRun,
    lifecycle: str,
    page: str,
    metrics: dict[str, float],
    rows: list[StepRow],
    note: str,
    connections: Connections,
) -> tuple[str | None, Path]:
    """Write the page, upload it to MLflow, and attach the table to the flow run.

    Args:
        run: the flow run.
        lifecycle: name of the preset's models.
        page: the HTML.
        metrics: for the MLflow run of the flow run.
        rows: the table.
        note: description of that run.
        connections: the store and MLflow.

    Returns:
        The page's address in MLflow (None while that is away) and its file.
    """
    path = connections.store.root / "reports" / run.id / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page)
    url = None
    try:
        url = connections.registry.flow_runs.report(
            lifecycle, run, page=path, metrics=metrics, note=note
        )
    except TransientError as error:
        get_run_logger().warning("the report is in %s, but not in MLflow: %s", path, error)
    else:
        create_link_artifact(
            url,
            link_text="the lifecycle's report",
            key="lifecycle-report-link",
            description="the report in MLflow",
        )
    link = f"[The whole report]({url})" if url else f"The whole report: `{path}`"
    text = f"{_table(rows)}\n\n{link}"
    create_markdown_artifact(text, key="lifecycle-report", description=lifecycle)
    return url, path


def _about(recipe: Recipe, run: FlowRun) -> About:
    champion = recipe.champion
    outside = {champion.stage_key: f"champion_{champion.version}"} if champion else {}
    outside |= {ref.key: name for name, ref in recipe.given.items()}
    return About(
        recipe.config.name,
        recipe.flow,
        run.id,
        time.time(),
        outside,
        name=run.name,
        page=redacted(url_for("flow-run", run.id) or ""),
        steps=_pages(recipe),
    )


def _pages(recipe: Recipe) -> dict[str, StepPages]:
    """Return MLflow's pages of each step; none while MLflow does not answer."""
    connections, lifecycle = recipe.connections, recipe.config.name
    registry = connections.registry
    runs: dict[str, str] = {}
    for step, ref in recipe.refs.items():
        manifest = connections.store.find(ref.stage, ref.key)
        if manifest and (run_id := registry.run_of(manifest, lifecycle)):
            runs[step] = run_id
    try:
        pages = registry.runs.pages(lifecycle, runs)
    except TransientError:
        return {}
    return {step: StepPages(page, _version_page(recipe, step)) for step, page in pages.items()}


def _version_page(recipe: Recipe, step: str) -> str:
    ref = recipe.refs[step]
    if ref.model_version is None:
        return ""
    name = f"{recipe.config.name}.{MODEL_SUFFIX[ref.kind]}"
    return version_page(recipe.connections.registry.mlflow.address, name, ref.model_version)


def _outcome(recipe: Recipe) -> Outcome:
    policies = [ref for ref in recipe.refs.values() if ref.kind == "policy"]
    newest = policies[-1].model_version if policies else None
    return Outcome(recipe.is_champion, newest, recipe.verdict, recipe.against, _approval(recipe))


def _in_words(recipe: Recipe) -> str:
    verdict = recipe.verdict
    if verdict is None:
        return "it was champion already" if recipe.is_champion else "the preset has no `evaluation`"
    if not verdict.passed:
        return f"it {RELATIONS[verdict.outcome]} {recipe.against}: expected {verdict.failed()}"
    approval = _approval(recipe)
    return f"it beats {recipe.against}" + (f"; {approval}" if approval else "")


def _approval(recipe: Recipe) -> str:
    """Say what a person answered, or that one is awaited; nothing if nobody is asked."""
    verdict, decision = recipe.verdict, recipe.decision
    if verdict is None or not verdict.passed or not recipe.config.promotion.approval.required:
        return ""
    if decision is None or decision.answer is None:
        return "it waits for the approval of a person"
    answered = {"approve": "approved it", "hold": "held it", "reject": "rejected it"}
    return f"{decision.who} {answered[decision.answer]}: {decision.why}"


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


def _reward(story: Lifecycle) -> str:
    """Return the held-out rewards of the first and the last policy, as text."""
    judged = story.judged
    if judged is None or judged.baseline is None or judged.policy is None:
        return ""
    ends = (judged.baseline, judged.policy)
    return " → ".join(f"{s.label} {with_error(s.reward, s.stderr)}" for s in ends)


def _note(story: Lifecycle) -> str:
    """Describe the run for MLflow: its steps, with links to their runs and versions."""
    head = ["| step | result | run | model version | time | |", "|---|---|---|---|---|---|"]
    lines = []
    for step in story.steps:
        pages = story.about.steps.get(step.ref.step, StepPages())
        run = f"[run]({pages.run})" if pages.run else "-"
        version = f"[{step.version}]({pages.version})" if pages.version else "-"
        lines.append(
            f"| {label(step.ref.step)} | {step.result} | {run} | {version} "
            f"| {duration(step.ref.seconds)} | {_kind(step.ref.is_reused)} |"
        )
    return "\n".join(["The steps of this flow run.", "", *head, *lines])


def _kind(is_reused: bool) -> str:
    return "reused" if is_reused else "run"


def _rows(story: Lifecycle) -> list[StepRow]:
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


def _table(rows: list[StepRow]) -> str:
    head = ["| step | result | version | time | |", "|---|---|---|---|---|"]
    lines = [
        f"| {label(row['step'])} | {row['result']} | {row['version'] or '-'} "
        f"| {duration(row['seconds'])} | {_kind(row['reused'])} |"
        for row in rows
    ]
    return "\n".join(head + lines)
