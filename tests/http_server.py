"""A real HTTP server in a thread, for what calls services outside."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

Answer = Callable[[Any, Mapping[str, str]], object]
"""(JSON body of a request, its headers) -> JSON body of the reply, or a whole response."""


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """Yield the address at which the app answers; a request waits until the server is up."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join()
        listening.close()


def answering(answer: Answer) -> ASGIApp:
    """An app that answers every POST with what `answer` makes of its body."""

    async def endpoint(request: Request) -> Response:
        made = answer(await request.json(), request.headers)
        return made if isinstance(made, Response) else JSONResponse(made)

    return Starlette(routes=[Route("/{path:path}", endpoint, methods=["POST"])])


def closed_port() -> int:
    """A port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]
