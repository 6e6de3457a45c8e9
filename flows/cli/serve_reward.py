"""`ratchet serve-reward`: a reward as an HTTP service, for `reward: {name: http}` and OpenRLHF."""

from __future__ import annotations

import asyncio
import hmac
import re
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from flows.cli import terminal
from flows.cli.listening import address_of, is_loopback, listen, token_for
from flows.local_services.own_pages import OwnPagesOnly
from flows.local_services.paths import own_origins
from flows.model_use.named_model import find_model
from stages.training.engines import best_device
from training_core.errors import ConfigError, DataError, InputError
from training_core.rewards.model_reward import RewardModelReward
from training_core.rewards.python_function import PythonReward, load_function
from training_core.rewards.reward import Reward
from training_core.rewards.service_requests import reply_of, rollouts_in
from training_core.strict_json import parse_json

PATH = "/get_reward"
MAX_REQUEST_BYTES = 32_000_000
MAX_REQUESTS_AT_ONCE = 32
BODY_SECONDS = 60.0
MICRO_BATCH_TOKENS = 8192
FUNCTION = r"(.+\.py|[^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*)"


class RewardServer:
    """Answers requests with the values of one reward.

    Args:
        reward: asked by one request at a time, because a model or function may not be thread-safe.
        token: expected in `Authorization: Bearer …`; None lets everybody in.
    """

    def __init__(self, reward: Reward, token: str | None) -> None:
        self._reward = reward
        self._token = token
        self._rewards = 0
        self._turn = threading.Lock()

    def app(self) -> Starlette:
        """Return the application."""
        return Starlette(
            routes=[
                Route(PATH, self._score, methods=["POST"]),
                Route("/health", self._health, methods=["GET"]),
            ],
            exception_handlers={HTTPException: _refused},
        )

    async def _health(self, _: Request) -> JSONResponse:
        return JSONResponse({"status": "ok", "rewards": self._rewards})

    async def _score(self, request: Request) -> JSONResponse:
        self._require_token(request)
        body = await _body(request)
        try:
            return JSONResponse(await run_in_threadpool(self._reply, body))
        except InputError as error:
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error

    def _reply(self, body: bytes) -> Mapping[str, object]:
        rollouts = rollouts_in(_parsed(body))
        with self._turn:
            started = time.monotonic()
            reply = reply_of(self._reward(rollouts))
            seconds = time.monotonic() - started
            self._rewards += len(rollouts)
            total = self._rewards
        missing = reply["rewards"].count(None)
        terminal.echo(
            f"{len(rollouts)} rewards, {missing} missing, in {seconds:.2f} s; {total} in all"
        )
        return reply

    def _require_token(self, request: Request) -> None:
        given = request.headers.get("authorization", "")
        if self._token and not hmac.compare_digest(
            given.encode(), f"Bearer {self._token}".encode()
        ):
            raise HTTPException(HTTPStatus.UNAUTHORIZED, "expected the token of this service")


async def _body(request: Request) -> bytes:
    """Read a body; one that is too large or too slow is not read to its end."""
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected application/json")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_REQUEST_BYTES:
                    raise HTTPException(
                        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                        f"expected at most {MAX_REQUEST_BYTES:,} bytes; send smaller batches",
                    )
    except TimeoutError as error:
        raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, "the request was too slow") from error
    return bytes(body)


def _parsed(body: bytes) -> object:
    try:
        return parse_json(body)
    except ValueError as error:
        raise DataError(f"expected JSON, found {error}; correct the body") from error


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, status_code=error.status_code)


def serve_reward(
    source: str,
    arguments: Mapping[str, object],
    *,
    host: str,
    port: int,
    token_variable: str,
    normalise: bool,
) -> None:
    """Serve a reward until the process is told to stop.

    Args:
        source: a reward model, see `find_model`, or `file.py:function`.
        arguments: keyword arguments of the function.
        host: address to listen at.
        port: port to listen at; 0 takes a free one.
        token_variable: environment variable with the token; it must be set unless `host` is
            loopback.
        normalise: shift and scale a model's scores by what its training stored.

    Raises:
        ConfigError: if there is no such reward, the port is taken, or the token is missing.
    """
    token = token_for(host, token_variable)
    listening = listen(host, port)
    port = listening.getsockname()[1]
    server = RewardServer(_reward_of(source, arguments, normalise=normalise), token)
    app: ASGIApp = server.app()
    if is_loopback(host):
        app = OwnPagesOnly(app, own_origins(port))
    config = uvicorn.Config(
        app, lifespan="off", log_level="warning", limit_concurrency=MAX_REQUESTS_AT_ONCE
    )
    address = address_of(host, port)
    terminal.echo(f"{source} answers at {address}{PATH}; its health is at {address}/health")
    uvicorn.Server(config).run(sockets=[listening])


def _reward_of(source: str, arguments: Mapping[str, object], *, normalise: bool) -> Reward:
    if match := re.fullmatch(FUNCTION, source):
        code, name = match.groups()
        return PythonReward(load_function(_code(code), name), arguments)
    if arguments:
        raise ConfigError(f"{', '.join(arguments)}: only a Python function takes arguments")
    return RewardModelReward(
        find_model(source, "reward_model").directory,
        normalise=normalise,
        micro_batch_tokens=MICRO_BATCH_TOKENS,
        device=best_device(),
    )


def _code(code: str) -> Path | str:
    return Path(code) if code.endswith(".py") else code
