"""`ratchet serve` as a process of its own, and OpenAI's client."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from typer.testing import CliRunner

from flows.cli.main import app
from flows.cli.serve import served_name
from flows.model_use.named_model import NamedModel
from flows.model_use.serving_gate import ServingGate
from training_core.models import hub

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "sk-very-secret"
ASKED = [{"role": "user", "content": "two tea please"}]
START_SECONDS = 240


@pytest.fixture(scope="module")
def policy(tmp_path_factory, make_policy, tokenizer) -> Path:
    """A model that both engines can run."""
    folder = tmp_path_factory.mktemp("models") / "cafe"
    model = make_policy(seed=1, hidden_size=64, num_heads=2, max_positions=2048)
    hub.save(model, tokenizer, folder)
    return folder


@contextmanager
def served(policy: Path, *more: str, **environment: str) -> Iterator[str]:
    """Yield the address of a server that is up."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli.main", "serve", str(policy), "--port", "0", *more],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "NO_PROXY": "*", **environment},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        match = re.search(r"answers? at (http://127\.0\.0\.1:\d+)/v1 under the name cafe;", first)
        assert match, first
        deadline = time.monotonic() + START_SECONDS
        while not is_healthy(match[1]):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.5)
        yield match[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()


def is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False).is_success
    except httpx.TransportError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_openais_client_gets_models_chats_streams_and_completions(policy, engine):
    with served(policy, "--engine", engine, RATCHET_SERVE_TOKEN=TOKEN) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=TOKEN, max_retries=0)
        assert [model.id for model in client.models.list()] == ["cafe"]
        options = {"model": "cafe", "max_tokens": 6, "temperature": 0.0}
        chat = client.chat.completions.create(messages=ASKED, **options)  # type: ignore[call-overload]
        whole = chat.choices[0].message.content
        pieces = client.chat.completions.create(messages=ASKED, stream=True, **options)  # type: ignore[call-overload]
        text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
        assert text.strip() == whole.strip()
        completion = client.completions.create(prompt="two tea", **options)  # type: ignore[call-overload]
        assert completion.choices[0].text.strip()

        other = openai.OpenAI(base_url=f"{url}/v1", api_key="sk-another", max_retries=0)
        with pytest.raises(openai.AuthenticationError, match="expected the token of this service"):
            other.models.list()
        headers = {"Authorization": f"Bearer {TOKEN}"}
        get = httpx.Client(base_url=url, headers=headers, trust_env=False).get
        assert get("/v1/models", headers={"origin": "https://evil.example"}).status_code == 403
        assert get("/v1/models", headers={"host": "evil.example"}).status_code == 400
        assert get("/docs").status_code == 404


async def everything(scope, receive, send) -> None:
    await PlainTextResponse("inside")(scope, receive, send)


def test_the_gate_opens_few_paths_and_health_needs_no_token():
    client = TestClient(ServingGate(everything, TOKEN))
    assert client.get("/health").text == "inside"
    refused = client.get("/v1/models")
    assert (refused.status_code, refused.json()["error"]["message"]) == (
        401,
        "expected the token of this service",
    )
    known = {"authorization": f"Bearer {TOKEN}"}
    assert client.get("/v1/models", headers=known).text == "inside"
    for path in ("/load_model", "/v1/models/../load_model", "/metrics", "/v1/responses"):
        assert client.post(path, headers=known).status_code == 404
    assert TestClient(ServingGate(everything)).get("/v1/models").text == "inside"


def test_names_in_requests_need_no_quoting(tmp_path):
    assert served_name(NamedModel("runs/my model/", tmp_path)) == "my-model"
    assert served_name(NamedModel("owner/name", tmp_path)) == "name"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--host", "0.0.0.0"), "0.0.0.0 can be reached from other machines, so a token is needed"),
        (("--engine", "vllm"), "rollouts.engine is vllm, but vLLM's CPU attention has no kernel"),
    ],
)
def test_what_cannot_be_served_is_refused(tmp_path, make_policy, tokenizer, options, said):
    hub.save(make_policy(), tokenizer, tmp_path)  # its heads have 8 numbers
    refused = CliRunner().invoke(
        app, ["serve", str(tmp_path), *options], env={"RATCHET_SERVE_TOKEN": ""}
    )
    assert refused.exit_code == 1
    assert said in refused.stderr
