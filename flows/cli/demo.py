"""`ratchet demo`: the whole lifecycle on this machine, with a live table and a summary."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterType,
    FlowRunFilter,
    FlowRunFilterId,
)
from prefect.settings import PREFECT_API_URL, temporary_settings
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from flows.cli import services
from flows.cli.deploy import deploy
from flows.local_services.paths import project_root
from flows.recipe.lifecycle_report import LifecycleSummary
from tasks.versions import without_userinfo

REFRESH_SECONDS = 1.0


def demo(deployment: str = "full-rlhf/tiny") -> bool:
    """Start the services, deploy, run a deployment, and show its results.

    Args:
        deployment: `<flow>/<deployment>`, one that ends with a lifecycle report.

    Returns:
        Whether the run completed and its policy is the champion.
    """
    console = Console()
    services.up()
    console.print("deploying …")
    deploy()
    environment = {**os.environ, **services.service_environment()}
    with temporary_settings({PREFECT_API_URL: environment["PREFECT_API_URL"]}):
        run_id, has_completed = _run(deployment, environment, console)
    summary_file = Path(environment["RATCHET_STORE"], "reports", run_id, "summary.json")
    summary: LifecycleSummary | None = (
        json.loads(summary_file.read_text()) if summary_file.exists() else None
    )
    show_summary(summary, environment, run_id, console)
    if not has_completed:
        console.print(
            "[red]the run did not complete[/]; its page (above) shows which step failed, and why"
        )
    return has_completed and summary is not None and summary["is_champion"]


def _run(deployment: str, environment: Mapping[str, str], console: Console) -> tuple[str, bool]:
    """Run the deployment by its command line; Prefect's own event lines go to a log."""
    command = [sys.executable, "-m", "prefect", "deployment", "run", deployment, "--watch"]
    console.print(f"[bold]$ prefect {' '.join(command[3:])}[/]")
    log = Path(environment["RATCHET_HOME"], "logs", "demo.log")
    with (
        log.open("w") as sink,
        subprocess.Popen(
            command,
            env=dict(environment),
            cwd=project_root(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        run_id = _copy_until_id(process, sink)
        rest = threading.Thread(target=_copy, args=(process, sink))
        rest.start()
        with (
            get_client(sync_client=True) as client,
            Live(console=console, refresh_per_second=4) as live,
        ):
            while process.poll() is None:
                live.update(_progress(client, UUID(run_id)))
                rest.join(REFRESH_SECONDS)
            live.update(_progress(client, UUID(run_id)))
        rest.join()
    return run_id, process.returncode == 0


def _copy_until_id(process: subprocess.Popen[str], sink: TextIO) -> str:
    for line in process.stdout or ():
        sink.write(line)
        if found := re.search(r"UUID: ([0-9a-f-]{36})", line):
            return found.group(1)
    raise services.ServiceError(f"the deployment did not start; see {sink.name}")


def _copy(process: subprocess.Popen[str], sink: TextIO) -> None:
    for line in process.stdout or ():
        sink.write(line)


def _progress(client: SyncPrefectClient, run_id: UUID) -> Group:
    """One row per step, from the run's task runs and progress artifacts."""
    of_run = FlowRunFilter(id=FlowRunFilterId(any_=[run_id]))
    tasks = client.read_task_runs(flow_run_filter=of_run)
    progress = client.read_artifacts(
        artifact_filter=ArtifactFilter(
            flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]),
            type=ArtifactFilterType(any_=["progress"]),
        )
    )
    texts = {a.task_run_id: a.description for a in progress}
    table = Table(box=None, show_header=False, padding=(0, 2))
    for task in sorted(tasks, key=lambda t: str(t.start_time or "")):
        if " " not in task.name:  # `register …`, `promote …` take no time
            seconds = f"{task.estimated_run_time.total_seconds():.0f} s"
            table.add_row(task.name, task.state_name, seconds, texts.get(task.id, ""))
    return Group(table)


def show_summary(
    summary: LifecycleSummary | None, environment: Mapping[str, str], run_id: str, console: Console
) -> None:
    """Print the lifecycle's table and the addresses of everything that the run made.

    Args:
        summary: the run's `summary.json`; None if the run wrote none.
        environment: where the services are.
        run_id: of the flow run.
        console: where to print.
    """
    table = Table(title="the lifecycle")
    for column in ("step", "model version", "what it improved", "seconds"):
        table.add_column(column, justify="right" if column == "seconds" else "left")
    for row in summary["rows"] if summary else ():
        seconds = "reused" if row["reused"] else f"{row['seconds']:.0f}"
        table.add_row(row["step"], str(row["version"] or ""), row["result"], seconds)
    console.print(table)
    prefect = environment["PREFECT_API_URL"].removesuffix("/api")
    console.print(f"champion         {'yes' if summary and summary['is_champion'] else 'no'}")
    console.print(f"Prefect          {prefect}/runs/flow-run/{run_id}", soft_wrap=True)
    mlflow = without_userinfo(environment["MLFLOW_TRACKING_URI"])
    console.print(f"MLflow           {mlflow}/#/models", soft_wrap=True)
    console.print(
        f"report           {summary['report_file'] if summary else 'not written'}", soft_wrap=True
    )
    console.print("stop it all      ratchet down", soft_wrap=True)
