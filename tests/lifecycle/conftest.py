"""One set of real services and one finished lifecycle for all tests of this folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from tests.lifecycle.driver import Lifecycle

RATCHET = (sys.executable, "-m", "flows.cli.main")


@pytest.fixture(scope="session")
def lifecycle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lifecycle]:
    """What `ratchet demo` leaves behind, in a home of its own."""
    home = tmp_path_factory.mktemp("home")
    outside = {"PREFECT_API_URL", "MLFLOW_TRACKING_URI", "RAY_ADDRESS", "OMP_NUM_THREADS"}
    environment = {k: v for k, v in os.environ.items() if k not in outside}
    environment |= {"RATCHET_HOME": str(home), "COLUMNS": "160"}
    try:
        demo = subprocess.run(
            (*RATCHET, "demo"), env=environment, capture_output=True, text=True, check=False
        )
        assert demo.returncode == 0, f"{demo.stdout[-3000:]}\n{demo.stderr[-3000:]}"
        printed = subprocess.run(
            (*RATCHET, "env"), env=environment, capture_output=True, text=True, check=True
        )
        exported = dict(re.findall(r"^export (\w+)='?(.*?)'?$", printed.stdout, re.MULTILINE))
        with (
            pytest.MonkeyPatch.context() as patch,
            temporary_settings({PREFECT_API_URL: exported["PREFECT_API_URL"]}),
        ):
            for name, value in exported.items():
                patch.setenv(name, value)
            with get_client(sync_client=True) as client:
                yield Lifecycle(client, {**environment, **exported}, demo.stdout)
    finally:
        subprocess.run((*RATCHET, "down"), env=environment, capture_output=True, check=False)


@pytest.fixture(scope="session")
def demo_run(lifecycle: Lifecycle) -> UUID:
    """The flow run that the demo made."""
    (report,) = (lifecycle.store.root / "reports").iterdir()
    return UUID(report.name)
