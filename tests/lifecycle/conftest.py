"""One set of real services and one finished lifecycle for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from tests.lifecycle.driver import Lifecycle
from tests.lifecycle.finished_demo import finished_demo

ADDRESSES = ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "RAY_ADDRESS", "RATCHET_STORE")


@pytest.fixture(scope="module")  # then the next tests of this process have their environment back
def lifecycle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lifecycle]:
    """What `ratchet demo` leaves behind, in a home of its own."""
    demo = finished_demo(tmp_path_factory.mktemp("home"))
    assert demo.code == 0, demo.output[-6000:]
    settings = {
        PREFECT_API_URL: demo.environment["PREFECT_API_URL"],
        PREFECT_CLIENT_MAX_RETRIES: 7,  # tests kill the server
    }
    with pytest.MonkeyPatch.context() as patch, temporary_settings(settings):
        for name in ADDRESSES:
            patch.setenv(name, demo.environment[name])
        with get_client(sync_client=True) as client:
            yield Lifecycle(client, demo)


@pytest.fixture(autouse=True)
def _no_run_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "lifecycle" in request.fixturenames:
        request.getfixturevalue("lifecycle").end_all()


@pytest.fixture(scope="module")
def demo_run(lifecycle: Lifecycle) -> UUID:
    """The flow run that the demo made."""
    (run,) = lifecycle.demo.runs
    return UUID(run)
