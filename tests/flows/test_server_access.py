"""Who may use the Prefect server that `ratchet up` starts: programs, and its own pages."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from prefect.client.orchestration import SyncPrefectClient
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from flows.local_services.http import post_to_prefect
from flows.local_services.state import load_records

pytestmark = pytest.mark.services

EVIL = "https://evil.example"
ALLOW = "access-control-allow-origin"


@pytest.fixture
def api(prefect_home: Path) -> str:
    return load_records(prefect_home).services["prefect"].url


@pytest.mark.parametrize("origin", [EVIL, "http://localhost:1", "null"])
def test_a_page_of_another_origin_gets_nothing(api, origin):
    headers = {"Origin": origin}
    for method, path in (("GET", "csrf-token?client=page"), ("POST", "flow_runs/filter")):
        answer = httpx.request(method, f"{api}/{path}", headers=headers)
        assert answer.status_code == 403
        assert ALLOW not in answer.headers
        assert "token" not in answer.text
    asked = {**headers, "Access-Control-Request-Method": "POST"}
    preflight = httpx.options(f"{api}/flow_runs/filter", headers=asked)
    assert preflight.is_error
    assert ALLOW not in preflight.headers
    with pytest.raises(InvalidStatus, match="403"), connect(events(api), origin=origin):
        pass


def test_a_name_that_only_points_to_this_machine_is_refused(api):
    answer = httpx.get(f"{api}/health", headers={"Host": "evil.example"})
    assert (answer.status_code, answer.text) == (400, "Invalid host header")


def test_a_post_without_a_token_is_refused(api):
    answer = httpx.post(f"{api}/flow_runs/filter", json={})
    assert (answer.status_code, answer.json()) == (403, {"detail": "Missing CSRF token."})
    assert isinstance(post_to_prefect(api, "flow_runs/filter", {}), list)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_the_server_s_own_page_can_use_it(api, name):
    page = api.removesuffix("/api").replace("127.0.0.1", name)
    shown = httpx.get(f"{page}/ui-settings").json()
    assert (shown["api_url"], shown["csrf_enabled"]) == (api, True)
    headers = {"Origin": page}
    issued = httpx.get(f"{api}/csrf-token?client=page-of-{name}", headers=headers).json()
    headers |= {"Prefect-Csrf-Client": issued["client"], "Prefect-Csrf-Token": issued["token"]}
    answer = httpx.post(f"{api}/flow_runs/filter", json={}, headers=headers)
    assert answer.is_success
    assert answer.headers[ALLOW] == page
    with connect(events(api), origin=page, subprotocols=["prefect"]):
        pass


def test_a_program_needs_nothing_special(client: SyncPrefectClient):
    made = client.create_flow_from_name("asked-by-a-program")
    assert client.read_flow(made).name == "asked-by-a-program"


def events(api: str) -> str:
    return f"{api.replace('http', 'ws', 1)}/events/out"
