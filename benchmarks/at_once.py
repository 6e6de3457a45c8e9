"""Many lifecycles at once on one server, beside one alone.

    python -m benchmarks at_once [--runs 50] [--worker-limit 4]

Starts services of its own and makes a shortened tiny lifecycle. Then runs it again: once, and so
many times at once; every step is reused, so what is measured is orchestration. Prints a Markdown
table. Fails if a run does not complete, or makes a stage again.
"""

from __future__ import annotations

import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from statistics import median
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_URL, temporary_settings

from benchmarks.disturbed import Machine, services, wait_for

LIMIT_SECONDS = 3600.0
HEAD = "| runs | s until the last one's end | s per run | s of a run, median | most at once |"


def run(arguments: Namespace) -> None:
    """Measure and print."""
    options = ("--worker-limit", str(arguments.worker_limit)) if arguments.worker_limit else ()
    with (
        tempfile.TemporaryDirectory(prefix="ratchet-", dir="/tmp") as folder,
        services(Path(folder, "h"), *options) as machine,
        temporary_settings({PREFECT_API_URL: machine.environment()["PREFECT_API_URL"]}),
        get_client(sync_client=True) as client,
    ):
        first = UUID(machine.start())
        await_ends(client, [first])
        made = len(machine.attempts())
        print(f"{HEAD}\n|---|---|---|---|---|")
        for number in (1, arguments.runs):
            print(row(number, *start_and_wait(client, first, number)), flush=True)
        require_none_made(machine, made)


def start_and_wait(
    client: SyncPrefectClient, like: UUID, number: int
) -> tuple[float, list[FlowRun]]:
    """Create so many runs like another, and return the seconds until all have ended, and them."""
    model = client.read_flow_run(like)
    assert model.deployment_id is not None
    began = time.monotonic()
    created = [
        client.create_flow_run_from_deployment(model.deployment_id, parameters=model.parameters).id
        for _ in range(number)
    ]
    ended = await_ends(client, created)
    return time.monotonic() - began, ended


def await_ends(client: SyncPrefectClient, runs: Sequence[UUID]) -> list[FlowRun]:
    """Wait until all runs have ended.

    Raises:
        SystemExit: if one has not completed.
    """

    def ended() -> list[FlowRun]:
        found = [client.read_flow_run(run) for run in runs]
        return found if all(each.state and each.state.is_final() for each in found) else []

    found = wait_for(ended, LIMIT_SECONDS, f"the end of {len(runs)} runs")
    if wrong := [each for each in found if not each.state.is_completed()]:
        raise SystemExit(f"{len(wrong)} of {len(runs)}: {wrong[0].name}: {wrong[0].state}")
    return found


def row(number: int, seconds: float, ended: Sequence[FlowRun]) -> str:
    """Return a row of the table."""
    spans = [(each.start_time, each.end_time) for each in ended]
    times = [(end - start).total_seconds() for start, end in spans if start and end]
    moments = sorted((at, by) for span in spans for at, by in zip(span, (1, -1), strict=True) if at)
    most = max(accumulate(by for _, by in moments))
    return f"| {number} | {seconds:.0f} | {seconds / number:.1f} | {median(times):.1f} | {most} |"


def require_none_made(machine: Machine, made: int) -> None:
    """Fail if a stage was made again."""
    if (now := len(machine.attempts())) != made:
        raise SystemExit(f"{now - made} stages were made again")
