"""Only the server's own pages may talk to it, and no page of another web site.

A page from anywhere may send requests to a loopback address, because the browser runs on this
machine. CORS hides only the answers, not WebSockets, and not from a site whose name points to
127.0.0.1 (DNS rebinding). So both headers with which a browser tells where a request comes from and
goes to, `Origin` and `Host`, must name this server. Programs send no `Origin`.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from flows.local_services.paths import LOOPBACK_NAMES


class OwnPagesOnly:
    """An ASGI application that refuses requests of foreign pages, WebSockets included.

    Args:
        app: the server.
        origins: origins of its own pages.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        self._app = TrustedHostMiddleware(app, LOOPBACK_NAMES, www_redirect=False)
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        is_request = scope["type"] in ("http", "websocket")
        origin = Headers(scope=scope).get("origin") if is_request else None
        if origin is None or origin in self._origins:
            await self._app(scope, receive, send)
            return
        text = f"requests of pages from {', '.join(sorted(self._origins))} are allowed, not others"
        await PlainTextResponse(text, status_code=403)(scope, receive, send)
