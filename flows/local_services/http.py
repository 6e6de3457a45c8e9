"""Requests to a service on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any
from uuid import uuid4

import httpx

TIMEOUT_SECONDS = 5.0
_CLIENT_ID = uuid4().hex  # Prefect keeps one token for each client


def request(
    method: str,
    url: str,
    body: dict[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Any:
    """Send a request.

    Args:
        method: GET or POST.
        url: the whole address.
        body: sent as JSON.
        headers: sent with it.

    Returns:
        The body of the response; None if the service is missing, not ready or has an error.
    """
    try:
        answer = _client().request(method, url, json=body, headers=headers)
    except httpx.TransportError:
        return None
    if answer.is_error:
        return None
    is_json = answer.headers.get("content-type", "").startswith("application/json")
    return answer.json() if is_json else answer.text


def post_to_prefect(url: str, path: str, body: dict[str, Any]) -> Any:
    """Send a POST to a Prefect server, with a token if the server issues tokens; see `request`.

    Args:
        url: address of the API.
        path: what is asked of it.
        body: sent as JSON.
    """
    issued = request("GET", f"{url}/csrf-token?client={_CLIENT_ID}")
    token = issued["token"] if isinstance(issued, dict) else ""
    headers = {"Prefect-Csrf-Client": _CLIENT_ID, "Prefect-Csrf-Token": token} if token else {}
    return request("POST", f"{url}/{path}", body, headers)


@cache
def _client() -> httpx.Client:
    # One client for all requests, because each new one reads the certificates again. No proxy from
    # the environment, because these addresses are on this machine.
    return httpx.Client(trust_env=False, timeout=TIMEOUT_SECONDS)
