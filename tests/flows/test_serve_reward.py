"""`ratchet serve-reward` as a process of its own, and its client."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from flows.cli import serve_reward
from stages.configs.reward_config import RewardModelRewardConfig
from stages.configs.reward_service_config import HttpRewardConfig
from stages.sampling.rewards import build_reward
from training_core.errors import ConfigError
from training_core.models import hub
from training_core.rewards.reward import Scored, Unscored
from training_core.types import Prompt, Rollout

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "sk-very-secret"
FUNCTION = """
import math
from training_core.rewards.reward import Unscored

def f(rollout, *, bonus=0.0):
    match rollout.text:
        case "reason": return Unscored("undecided")
        case "raise": raise KeyError("gold")
        case "nan": return math.nan
        case "none": return None
    return len(rollout.text) + bonus + float(rollout.prompt.columns["label"] or 0)
"""


@contextmanager
def served(*arguments: str, **environment: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Yield the url of a server, which is a process of its own, and the process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli.main", "serve-reward", *arguments, "--port", "0"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        match = re.search(r"answers at (http://127\.0\.0\.1:\d+/get_reward)", first)
        assert match, first
        yield match.group(1), process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()


def rollout(text: str, **columns: object) -> Rollout:
    prompt = Prompt(
        "7", ({"role": "user", "content": "two tea please"},), "two tea ", (1,), columns
    )
    return Rollout(prompt, (5, 2), (-1.0, -1.0), text, is_finished=True, policy_version=0)


def client(url: str, **options: object):
    config = {"name": "http", "url": url, "retries": 0, **options}
    return build_reward(HttpRewardConfig.model_validate(config), {})


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[str]:
    """The url of a server of the function above, with a token."""
    file = tmp_path_factory.mktemp("function") / "own.py"
    file.write_text(FUNCTION)
    with served(f"{file}:f", "bonus=0.5", RATCHET_REWARD_TOKEN=TOKEN) as (url, _):
        yield url


@pytest.fixture
def token(monkeypatch) -> str:
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    return "MY_TOKEN"


def test_a_function_is_served_and_its_failures_are_reasons(server, token):
    reward = client(server, token_variable=token, label_column="gold", batch_size=2)
    texts = ["", "four", "reason", "raise", "nan"]
    found = reward([rollout(text, gold=0) for text in texts])
    assert found == [
        Scored(0.5, {}),
        Scored(4.5, {}),
        Unscored("undecided"),
        Unscored("KeyError: 'gold' (own.py, line 8)"),
        Unscored("the reward is nan"),
    ]
    assert reward([rollout("", gold=10)]) == [Scored(10.5, {})]


def test_a_function_that_returns_no_number_stops_the_client_with_its_message(server, token):
    with pytest.raises(ConfigError, match=r"answered 422.*the reward f returned None"):
        client(server, token_variable=token)([rollout("none")])


def test_without_the_token_nobody_is_served(server, token, monkeypatch):
    with pytest.raises(ConfigError, match="answered 401: it refuses the token"):
        client(server)([rollout("a")])
    monkeypatch.setenv("MY_TOKEN", "another")
    with pytest.raises(ConfigError, match="answered 401: it refuses the token"):
        client(server, token_variable=token)([rollout("a")])


def post(url: str, content: bytes, **headers: str) -> httpx.Response:
    sent = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json", **headers}
    return httpx.post(url, content=content, headers=sent, trust_env=False)


GOOD: Mapping[str, object] = {"query": ["two tea."], "prompts": ["two tea"], "labels": [""]}


def test_a_client_of_openrlhf_is_served(server):
    reply = post(server, json.dumps(GOOD).encode())
    assert reply.json() == {"rewards": [1.5]}


@pytest.mark.parametrize(
    ("content", "headers", "status", "said"),
    [
        (b"{", {}, 422, "expected JSON, found"),
        (b"[NaN]", {}, 422, "expected JSON, found the number NaN"),
        (b'{"query": [1], "prompts": [""]}', {}, 422, "query[0]: expected a text, found 1"),
        (b"{}", {"content-type": "text/plain"}, 415, "expected application/json"),
        (b" " * 32_000_001, {}, 413, "expected at most 32,000,000 bytes"),
    ],
    ids=["no json", "nan", "wrong field", "a form", "too large"],
)
def test_a_bad_request_is_refused_with_what_was_expected(server, content, headers, status, said):
    reply = post(server, content, **headers)
    assert reply.status_code == status
    assert said in reply.json()["error"]


def test_a_page_of_another_site_is_not_served(server):
    content = json.dumps(GOOD).encode()
    assert post(server, content, origin="https://evil.example").status_code == 403
    assert post(server, content, host="evil.example").status_code == 400


def test_its_health_needs_no_token_and_counts(server):
    health = server.replace("get_reward", "health")
    before = httpx.get(health, trust_env=False).json()
    assert before["status"] == "ok"
    post(server, json.dumps(GOOD).encode())
    assert httpx.get(health, trust_env=False).json()["rewards"] == before["rewards"] + 1


def test_a_reward_model_is_served_as_a_stage_would_use_it(tmp_path, make_scalar_model, tokenizer):
    model = make_scalar_model()
    model.config.reward_mean, model.config.reward_std = 2.0, 4.0
    hub.save(model, tokenizer, tmp_path)
    rollouts = [rollout("two tea ."), rollout("one pie")]
    inside = build_reward(RewardModelRewardConfig(), {"reward_model": tmp_path})(rollouts)
    with served(str(tmp_path)) as (url, process):
        found = client(url)(rollouts)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("2 rewards, 0 missing, in ")
    assert [one.reward for one in found] == pytest.approx(inside, abs=1e-6)


def refusal(source: str, arguments: Mapping[str, object] | None = None, **options: object) -> str:
    settings = {
        "host": "127.0.0.1",
        "port": 0,
        "token_variable": "NO_SUCH_TOKEN",
        "normalise": True,
        **options,
    }
    with pytest.raises(ConfigError) as caught:
        serve_reward.serve_reward(source, arguments or {}, **settings)
    return str(caught.value)


def test_beyond_this_machine_a_token_is_needed(tmp_path):
    said = refusal(str(tmp_path), host="0.0.0.0")
    assert said.startswith("0.0.0.0 can be reached from other machines, so a token is needed; set")
    assert "NO_SUCH_TOKEN" in said


def test_what_cannot_be_served_is_refused(tmp_path):
    assert refusal("no/such/place").startswith("expected a directory, <lifecycle>@<alias>")
    assert refusal(f"{tmp_path}/gone.py:f").startswith(f"the reward's code {tmp_path}/gone.py")
    assert refusal(str(tmp_path), {"a": 1}) == "a: only a Python function takes arguments"
    assert refusal(str(tmp_path), port=70_000).startswith("cannot listen at 127.0.0.1, port 70000")


@pytest.mark.services
def test_the_name_of_a_lifecycle_means_its_reward_model(mlflow_uri, tmp_path, monkeypatch):
    addresses = {"RATCHET_STORE": str(tmp_path), "MLFLOW_TRACKING_URI": mlflow_uri}
    for name, value in {**addresses, "RAY_ADDRESS": "http://127.0.0.1:1"}.items():
        monkeypatch.setenv(name, value)
    said = refusal("serve-reward/99")
    assert said.startswith("there is no 'models:/serve-reward.reward-model/99'")
