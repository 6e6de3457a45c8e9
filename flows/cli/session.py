"""The services as a command uses them: Prefect's client, the store, and all addresses."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.local_services.environment import client_environment
from flows.local_services.health import external_answers
from flows.local_services.paths import home_folder
from flows.local_services.state import ServiceError, ServiceRecord, load_records, page_at
from stages.runtime.store import Store
from stages.safe_text import redacted


@dataclass(frozen=True)
class Session:
    """A Prefect server that answers, and where everything else is.

    Attributes:
        client: of the server.
        environment: addresses and folders, as environment variables.
    """

    client: SyncPrefectClient
    environment: Mapping[str, str]

    @property
    def store(self) -> Store:
        """The finished stages."""
        return Store(Path(self.environment["RATCHET_STORE"]))

    def page_of(self, run_id: object) -> str:
        """Return the address of a flow run's page."""
        return f"{page_at(self.environment['PREFECT_API_URL'])}/runs/flow-run/{run_id}"


@contextmanager
def open_session(home: Path | None = None) -> Iterator[Session]:
    """Connect to the Prefect server of a home, or to the one that PREFECT_API_URL names.

    Args:
        home: the folder of all state; `$RATCHET_HOME` or `.ratchet` if not given.

    Raises:
        ServiceError: no server answers, or it ceases to answer.
    """
    home = home or home_folder()
    url = api_url_of(home)
    known = client_environment(home, load_records(home))
    environment = {**known, **os.environ, "PREFECT_API_URL": url}
    environment["RATCHET_STORE"] = known["RATCHET_STORE"]
    try:
        with temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as client:
            yield Session(client, environment)
    except httpx.HTTPError as error:
        raise ServiceError(
            f"the Prefect server at {redacted(url)} does not answer as expected: {error}; look at "
            "`ratchet status`; runs go on meanwhile"
        ) from error


def api_url_of(home: Path) -> str:
    """Return the address of the Prefect server of a home.

    Raises:
        ServiceError: there is none, or it does not answer.
    """
    url = os.environ.get("PREFECT_API_URL") or load_records(home).url_of("prefect")
    if url is None:
        raise ServiceError(
            f"there is no Prefect server: none was started in {home} and PREFECT_API_URL is not "
            "set; run `ratchet up`, or set it to your team's server"
        )
    if not external_answers(ServiceRecord(name="prefect", url=url, is_external=True)):
        raise ServiceError(
            f"no Prefect server answers at {redacted(url)}; run `ratchet up`, or start it"
        )
    return url
