"""What lets requests into a server of a model, whichever program it is.

vLLM imports this module in its own process, so it imports little.
"""

from __future__ import annotations

import hmac
import os

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from flows.local_services.own_pages import OwnPagesOnly
from flows.local_services.paths import own_origins

HEALTH = "/health"
OPEN_PATHS = ("/v1/models", "/v1/chat/completions", "/v1/completions", HEALTH)
"""The servers have more, e.g. to load other models; nobody needs them here."""

TOKEN_VARIABLE = "RATCHET_SERVED_TOKEN"
PORT_VARIABLE = "RATCHET_SERVED_LOOPBACK_PORT"
"""Environment variables by which a process of vLLM learns the arguments of its gate."""


class ServingGate:
    """An ASGI application that lets requests to few paths in, and only with the token.

    Args:
        app: the server.
        token: expected in `Authorization: Bearer …`; None lets everybody in.
        loopback_port: port of a server that only this machine reaches: then pages of other sites
            are refused, too, because a browser on this machine would send their requests.
    """

    def __init__(
        self, app: ASGIApp, token: str | None = None, loopback_port: int | None = None
    ) -> None:
        self._app = app
        self._token = token
        self._entrance: ASGIApp = self._enter
        if loopback_port is not None:
            self._entrance = OwnPagesOnly(self._enter, own_origins(loopback_port))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        app = self._app if scope["type"] == "lifespan" else self._entrance
        await app(scope, receive, send)

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in OPEN_PATHS:
            status, said = 404, f"expected one of {', '.join(OPEN_PATHS)}"
        elif scope["path"] != HEALTH and not self._knows(Headers(scope=scope)):
            status, said = 401, "expected the token of this service"
        else:
            await self._app(scope, receive, send)
            return
        if scope["type"] == "http":
            await JSONResponse({"error": {"message": said}}, status)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _knows(self, headers: Headers) -> bool:
        given, expected = headers.get("authorization", ""), f"Bearer {self._token}"
        return self._token is None or hmac.compare_digest(given.encode(), expected.encode())


class GateOfEnvironment(ServingGate):
    """A gate whose arguments are in the environment, for `vllm serve --middleware`."""

    def __init__(self, app: ASGIApp) -> None:
        port = os.environ.get(PORT_VARIABLE)
        super().__init__(app, os.environ.get(TOKEN_VARIABLE), int(port) if port else None)
