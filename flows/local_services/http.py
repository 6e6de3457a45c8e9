"""Requests to a service on this machine."""

from __future__ import annotations

from functools import cache
from typing import Any

import httpx

TIMEOUT_SECONDS = 5.0


def ask(method: str, url: str, body: dict[str, Any] | None = None) -> Any:
    """Send a request.

    Args:
        method: GET or POST.
        url: the whole address.
        body: sent as JSON.

    Returns:
        The body of the response; None if the service is missing, not ready or has an error.
    """
    try:
        answer = _client().request(method, url, json=body)
    except httpx.TransportError:
        return None
    if answer.is_error:
        return None
    is_json = answer.headers.get("content-type", "").startswith("application/json")
    return answer.json() if is_json else answer.text


@cache
def _client() -> httpx.Client:
    # One client for all requests, because each new one reads the certificates again. No proxy from
    # the environment, because these addresses are on this machine.
    return httpx.Client(trust_env=False, timeout=TIMEOUT_SECONDS)
