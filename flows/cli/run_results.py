"""What a flow run has made or why it has not: its table, its verdict, and all addresses."""

from __future__ import annotations

import json

from rich.table import Table

from flows.cli.automations import AUTO_RESUME_TAG
from flows.cli.find_runs import short_id
from flows.cli.run_view import RunView
from flows.cli.session import Session
from flows.cli.terminal import Terminal
from flows.local_services.state import page_at
from flows.recipe.lifecycle_report import LifecycleSummary
from stages.safe_text import redacted
from tasks.mlflow_pages import models_page


def summary_of(session: Session, run_id: object) -> LifecycleSummary | None:
    """Return the `summary.json` of a run; None if the run wrote none."""
    path = session.store.root / "reports" / str(run_id) / "summary.json"
    return json.loads(path.read_text()) if path.exists() else None


def show_end(session: Session, view: RunView, console: Terminal) -> None:
    """Print how a run has ended, with everything that a person may want to open next."""
    run_id, state = str(view.run.id), view.run.state
    console.print(f"{view.run.name}: {view.state}", style="green" if is_completed(view) else "red")
    if summary := summary_of(session, run_id) if is_completed(view) else None:
        show_summary(summary, console)
    failed = [step for step in view.steps if step.has_failed]
    for step in failed:
        console.print(f"failed step      {step.name}", soft_wrap=True)
        console.print(f"reason           {redacted(step.message)}", soft_wrap=True)
        console.print(f"log              {step.log or 'there is none'}", soft_wrap=True)
    if state and state.message and not failed and not is_completed(view):
        console.print(f"reason           {redacted(state.message)}", soft_wrap=True)
    console.print(f"Prefect          {session.page_of(run_id)}", soft_wrap=True)
    if mlflow := session.environment.get("MLFLOW_TRACKING_URI"):
        console.print(f"MLflow           {models_page(page_at(mlflow))}", soft_wrap=True)
    if not is_completed(view):
        console.print(f"its whole log    ratchet logs {short_id(view.run.id)}", soft_wrap=True)
        console.print(f"go on            {_how_to_go_on(view)}", soft_wrap=True)
    console.print("stop it all      ratchet down", soft_wrap=True)


def _how_to_go_on(view: RunView) -> str:
    short = short_id(view.run.id)
    is_crashed = view.run.state is not None and view.run.state.is_crashed()
    if is_crashed and AUTO_RESUME_TAG in view.run.tags:
        return f"it does so by itself in ten seconds; ratchet watch {short}"
    return f"ratchet retry {short}"


def is_completed(view: RunView) -> bool:
    """Whether a run has ended well."""
    return view.run.state is not None and view.run.state.is_completed()


def show_summary(summary: LifecycleSummary, console: Terminal) -> None:
    """Print the table of a finished lifecycle, its verdict, and where its report is."""
    console.print(_table(summary))
    answer = "yes" if summary["is_champion"] else "no"
    verdict = summary.get("verdict", "")  # runs of earlier versions have none
    why = f", {verdict}" if verdict else ""
    if decision := summary.get("decision", ""):
        console.print(f"decision         {decision}", soft_wrap=True)
    console.print(f"champion         {answer}{why}", soft_wrap=True)
    console.print(f"report           {summary['report_file']}", soft_wrap=True)
    if summary["is_champion"]:
        console.print(
            f"try it           ratchet chat {summary['lifecycle']}@champion", soft_wrap=True
        )


def _table(summary: LifecycleSummary) -> Table:
    table = Table(title="the lifecycle")
    for column in ("step", "model version", "what it improved", "seconds"):
        table.add_column(column, justify="right" if column == "seconds" else "left")
    for row in summary["rows"]:
        seconds = "reused" if row["reused"] else f"{row['seconds']:.0f}"
        table.add_row(row["step"], str(row["version"] or ""), row["result"], seconds)
    return table
