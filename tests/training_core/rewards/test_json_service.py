"""What is sent to a service and taken from it: retries, limits, no redirects, no shown token."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest
from starlette.responses import Response

from tests.http_server import answering, closed_port, serving
from training_core.errors import ConfigError, TransientError
from training_core.rewards.json_service import JsonService, ReplyError

TOKEN = "sk-very-secret"


def client(url, *, token=None, retries=2, **options):
    settings = {"connections": 2, "timeout_seconds": 20, "backoff_seconds": 0.0, **options}
    return JsonService(url, token=token, retries=retries, **settings)


def test_a_body_is_posted_with_the_token_and_the_reply_is_returned():
    seen = []

    def answer(body, headers):
        seen.append((body, headers["authorization"], headers["content-type"]))
        return {"echo": body}

    with serving(answering(answer)) as url:
        assert client(url, token=TOKEN).post({"a": [1]}) == {"echo": {"a": [1]}}
    assert seen == [({"a": [1]}, f"Bearer {TOKEN}", "application/json")]


def test_without_a_token_there_is_no_such_header():
    with serving(answering(lambda _, headers: "authorization" in headers)) as url:
        assert client(url).post({}) is False


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_service_that_is_busy_is_asked_again(status):
    statuses = [status, status, 200]
    with serving(answering(lambda *_: Response("{}", statuses.pop(0)))) as url:
        assert client(url).post({}) == {}
    assert statuses == []


def test_a_service_that_stays_broken_is_a_transient_error():
    asked = []

    def answer(body, _):
        asked.append(body)
        return Response("no", 503)

    message = r"/x did not answer after 2 retries: .*503"
    with serving(answering(answer)) as url, pytest.raises(TransientError, match=message):
        client(f"{url}/x").post({})
    assert asked == [{}] * 3


def test_a_service_that_is_not_there_is_a_transient_error():
    with pytest.raises(TransientError, match=r"did not answer after 2 retries: .*refused"):
        client(f"http://127.0.0.1:{closed_port()}", token=TOKEN).post({})


def raw_server(*answers):
    """A server that sends raw bytes, one answer per connection, and then closes it."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve():
        with listening:
            for answer in answers:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(100_000)
                    connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return f"http://127.0.0.1:{listening.getsockname()[1]}", thread


def http(body, *, length=None):
    length = len(body) if length is None else length
    return f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n".encode() + body


def test_a_connection_that_is_lost_in_the_middle_of_a_reply_is_tried_again():
    url, thread = raw_server(b"", http(b'{"a"', length=9), http(b'{"a": 1}'))
    assert client(url).post({}) == {"a": 1}
    thread.join()


def test_a_service_that_never_answers_is_a_transient_error():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TransientError, match=r"did not answer after 1 retries: .*timed out"):
            client(url, retries=1, timeout_seconds=0.05).post({})


def test_a_reply_without_an_end_is_a_transient_error():
    listening = socket.create_server(("127.0.0.1", 0))

    def trickle():
        with listening, listening.accept()[0] as connection:
            connection.recv(100_000)
            with contextlib.suppress(OSError):  # until the client has gone
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
                while True:
                    connection.sendall(b" ")

    thread = threading.Thread(target=trickle)
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    with pytest.raises(TransientError, match=r"after 0 retries: .*no whole reply in 0.2 seconds"):
        client(url, retries=0, timeout_seconds=0.2, max_reply_bytes=10**9).post({})
    thread.join()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_refused_and_the_token_goes_nowhere_else(status):
    elsewhere = []
    with (
        serving(answering(lambda *_: elsewhere.append(1))) as other,
        serving(answering(lambda *_: Response("", status, {"Location": other}))) as url,
        pytest.raises(ConfigError, match=rf"answered {status}, a redirect, .*final address"),
    ):
        client(url, token=TOKEN).post({})
    assert elsewhere == []


def test_a_reply_that_is_too_large_is_not_read_to_its_end():
    with (
        serving(answering(lambda *_: "x" * 100_000)) as url,
        pytest.raises(ReplyError, match="the reply has more than 50,000 bytes"),
    ):
        client(url, max_reply_bytes=50_000).post({})


@pytest.mark.parametrize("reply", ["", "no json", "{", "[" * 100_000])
def test_a_reply_that_is_no_json_is_an_error_of_the_reply(reply):
    with (
        serving(answering(lambda *_: Response(reply))) as url,
        pytest.raises(ReplyError, match="the reply is no JSON: '"),
    ):
        client(url).post({})


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "refuses the token; correct the environment variable"),
        (403, "refuses the token"),
        (404, "answered 404; correct the url or the request. It said: 'wrong: "),
        (422, "answered 422"),
    ],
)
def test_a_refusal_is_not_tried_again_and_shows_no_token(status, message):
    asked = []

    def answer(_, headers):
        asked.append(headers["authorization"])
        return Response(f"wrong: {headers['authorization']}", status)

    with serving(answering(answer)) as url, pytest.raises(ConfigError, match=message) as caught:
        client(url, token=TOKEN).post({})
    assert asked == [f"Bearer {TOKEN}"]
    assert "Bearer ***" in str(caught.value)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("token", ["", "a b", "a\nb", "ü"])
def test_a_token_that_no_header_can_have_is_refused_and_not_shown(token):
    with pytest.raises(ConfigError, match="the token for http://x is empty, or has") as caught:
        client("http://x", token=token)
    assert not token or token not in str(caught.value)
