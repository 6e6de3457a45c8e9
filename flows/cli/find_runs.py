"""Flow runs of Ratchet: the newest, or one by its id, the start of its id, or its name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterName,
)
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import FlowRunSort

from flows.cli.recipes import RECIPES
from training_core.errors import ConfigError

FLOWS = (*RECIPES, "stage", "promote")
SHORT = 8
PAGE = 200
"""What Prefect gives at once of runs, of their tasks and of lines of their logs."""
SKEW = timedelta(minutes=1)
"""Difference between this machine's clock and the server's that hides no run."""

ID_START = re.compile(r"[0-9a-f][0-9a-f-]{3,35}")


def newest_runs(client: SyncPrefectClient, limit: int, *, name: str | None = None) -> list[FlowRun]:
    """Return runs, newest first, without those that a schedule will start later.

    Args:
        client: of the server.
        limit: how many at most.
        name: only runs of this name.
    """
    return list(islice(_newest_first(client, min(limit, PAGE), name), limit))


def find_run(client: SyncPrefectClient, named: str | None) -> FlowRun:
    """Return the run that a person means.

    Args:
        client: of the server.
        named: name (of several runs with it, the newest), id, or start of the id with at least
            four characters; None is the newest run.

    Raises:
        ConfigError: if there is none, or several ids begin like that.
    """
    if named is None:
        newest = newest_runs(client, 1)
        if not newest:
            raise ConfigError("there is no run yet; start one with `ratchet run tiny`")
        return newest[0]
    if same_name := newest_runs(client, 1, name=named):
        return same_name[0]
    start = named.lower()
    found: list[FlowRun] = []
    if ID_START.fullmatch(start):
        found = [run for run in _newest_first(client, PAGE) if str(run.id).startswith(start)]
    if len(found) > 1:
        ids = ", ".join(str(run.id) for run in found[:5])
        raise ConfigError(
            f"{len(found)} runs have an id that begins with '{named}', e.g. {ids}; type more of it"
        )
    if not found:
        raise ConfigError(
            f"expected the name, the id, or at least four characters of the id of a run, found "
            f"'{named}'; `ratchet runs` lists them"
        )
    return found[0]


def short_id(run_id: UUID) -> str:
    """Return the start of an id, as tables show it."""
    return str(run_id)[:SHORT]


def _newest_first(
    client: SyncPrefectClient, page: int, name: str | None = None
) -> Iterator[FlowRun]:
    soon = {"before_": datetime.now(UTC) + SKEW}
    until = FlowRunFilterExpectedStartTime.model_validate(soon)
    wanted = FlowRunFilter(
        expected_start_time=until, name=FlowRunFilterName(any_=[name]) if name else None
    )
    flows = FlowFilter(name=FlowFilterName(any_=list(FLOWS)))
    offset = 0
    while runs := client.read_flow_runs(
        flow_filter=flows,
        flow_run_filter=wanted,
        sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        limit=page,
        offset=offset,
    ):
        yield from runs
        offset += len(runs)
