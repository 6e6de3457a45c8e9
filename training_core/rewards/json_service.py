"""The door to services outside: JSON by HTTP, with retries and limits, without redirects."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import urllib3
from urllib3.exceptions import HTTPError, MaxRetryError, ProtocolError
from urllib3.util import Retry, Timeout

from training_core.errors import ConfigError, TransientError

RETRIED = (408, 425, 429, 500, 502, 503, 504)
"""Statuses after which the same request may succeed."""

LONGEST_PAUSE_SECONDS = 60
PIECE_BYTES = 65_536
SHOWN_CHARACTERS = 200
SUCCESS = range(200, 300)
REDIRECTS = range(300, 400)


class ReplyError(ValueError):
    """A reply that is not what was asked for; another request may get a good one."""


class JsonService:
    """Posts JSON to one address, from several threads at once.

    Lost connections, timeouts and the statuses of `RETRIED` are retried with exponential backoff
    and jitter; `Retry-After` is obeyed. Redirects are refused, because they could lead text and
    token to another place. Proxies of the environment are not used.

    Args:
        url: the address.
        token: sent as `Authorization: Bearer …`; it never appears in an error. None sends none.
        connections: largest number of requests at once.
        timeout_seconds: limit of connecting, of each wait for data, and of reading a reply.
        retries: number of further tries.
        backoff_seconds: first pause, which doubles with each further try.
        max_reply_bytes: limit of a reply.

    Attributes:
        url: the address.

    Raises:
        ConfigError: if the token cannot be sent in a header.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None,
        connections: int,
        timeout_seconds: float,
        retries: int,
        backoff_seconds: float = 0.5,
        max_reply_bytes: int = 16_000_000,
    ) -> None:
        if token is not None and not re.fullmatch(r"[!-~]+", token):
            raise ConfigError(
                f"the token for {url} is empty, or has characters that a header cannot have; "
                "correct its environment variable"
            )
        self.url = url
        self._token = token
        self._pool = urllib3.PoolManager(maxsize=connections)
        self._timeout_seconds = timeout_seconds
        self._max_reply_bytes = max_reply_bytes
        self._retries = Retry(
            total=retries,
            allowed_methods=None,  # a reward may be asked twice: it changes nothing
            backoff_factor=backoff_seconds,
            backoff_jitter=backoff_seconds,
            backoff_max=LONGEST_PAUSE_SECONDS,
            retry_after_max=LONGEST_PAUSE_SECONDS,
        )

    def post(self, body: Mapping[str, Any]) -> Any:
        """Post a JSON object and return the JSON value of the reply.

        Raises:
            ReplyError: if the reply is too large or is no JSON.
            ConfigError: if the service refuses the request, or redirects it.
            TransientError: if it does not answer, after the retries.
        """
        status, reply = self._answer(json.dumps(body).encode())
        if status not in SUCCESS:
            raise ConfigError(self._refusal(status, reply))
        try:
            return json.loads(reply)
        except (ValueError, RecursionError) as error:
            raise ReplyError(f"the reply is no JSON: {self._shown(reply)}") from error

    def _answer(self, body: bytes) -> tuple[int, bytes]:
        retries = self._retries
        try:
            while True:
                try:
                    response = self._pool.request(
                        "POST",
                        self.url,
                        body=body,
                        headers=self._headers(),
                        timeout=Timeout(self._timeout_seconds),
                        retries=False,  # urllib3 would read the whole body of an error
                        redirect=False,
                        preload_content=False,
                    )
                    reply = self._read(response)
                except HTTPError as error:
                    retries = retries.increment("POST", self.url, error=error)
                    retries.sleep()
                    continue
                if response.status not in RETRIED:
                    return response.status, reply
                retries = retries.increment("POST", self.url, response=response)
                retries.sleep(response)
        except MaxRetryError as error:
            raise TransientError(
                f"{self.url} did not answer after {self._retries.total} retries: "
                f"{self._without_token(str(error.reason))}; start the service, or correct the url"
            ) from error

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        return headers | ({"Authorization": f"Bearer {self._token}"} if self._token else {})

    def _read(self, response: urllib3.BaseHTTPResponse) -> bytes:
        """Read a reply; what is too large or too slow is not read to its end."""
        deadline = time.monotonic() + self._timeout_seconds
        reply = b""
        try:
            while piece := response.read1(PIECE_BYTES):
                reply += piece
                if len(reply) > self._max_reply_bytes:
                    raise ReplyError(f"the reply has more than {self._max_reply_bytes:,} bytes")
                if time.monotonic() > deadline:
                    raise ProtocolError(f"no whole reply in {self._timeout_seconds:g} seconds")
        finally:
            response.close()
            response.release_conn()
        return reply

    def _refusal(self, status: int, reply: bytes) -> str:
        if status in REDIRECTS:
            return (
                f"{self.url} answered {status}, a redirect, which is not followed; "
                "write the final address"
            )
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return (
                f"{self.url} answered {status}: it refuses the token; correct the environment "
                f"variable that the config names. It said: {self._shown(reply)}"
            )
        return (
            f"{self.url} answered {status}; correct the url or the request. "
            f"It said: {self._shown(reply)}"
        )

    def _shown(self, reply: bytes) -> str:
        text = self._without_token(reply.decode(errors="replace"))
        return repr(text[:SHOWN_CHARACTERS])

    def _without_token(self, text: str) -> str:
        return text.replace(self._token, "***") if self._token else text
