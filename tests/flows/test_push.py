"""`ratchet push`: what arrives at a hub, and what the model card tells."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml
from huggingface_hub import constants
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from flows.cli.main import app
from stages.runtime.store import Store
from tasks import ledger
from tasks.attempts import Match
from tasks.gate import GateConfig, judge
from tasks.ledger import Decision
from tasks.registry import Registry
from tests.http_server import closed_port, serving
from tests.hub_server import Hub, Repository
from tests.tasks.real_services import finish_stage
from training_core.models import hub

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "hf_thisIsVerySecret"
METRICS = {
    "won_prompts": 90.0,
    "lost_prompts": 10.0,
    "judged_prompts": 100.0,
    "judged_fraction": 1.0,
    "reward_gain": 0.1,
}


@pytest.fixture
def policy(tmp_path, make_policy, tokenizer) -> Path:
    hub.save(make_policy(seed=1), tokenizer, tmp_path / "policy")
    return tmp_path / "policy"


@pytest.fixture
def server() -> Iterator[tuple[Hub, str]]:
    standing_in = Hub(TOKEN)
    with serving(standing_in.app()) as url:
        yield standing_in, url


def run(url: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, because the hub's address is read when imported."""
    own = {"HF_ENDPOINT": url, "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0", "PYTHONPATH": str(ROOT)}
    no_proxy = {"NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_XET": "1"}
    return subprocess.run(
        [sys.executable, "-m", "flows.cli.main", "push", *words],
        env={**os.environ, **own, **no_proxy}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_a_model_arrives_whole_in_one_commit_and_a_second_push_replaces_its_weights(
    policy, server, tmp_path
):
    standing_in, url = server
    done = run(url, str(policy), "acme/cafe", "--private", "--max-shard-size", "10KB")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{policy} is at {url}/acme/cafe\n"
    repository = standing_in.repositories["acme/cafe"]
    assert repository.private
    assert repository.messages == ["Upload a model with Ratchet"]  # without a path of this machine
    assert "model.safetensors.index.json" in repository.files
    assert TOKEN not in done.stdout + done.stderr

    repository.files["LICENSE"] = b"mine"
    done = run(url, str(policy), "acme/cafe")
    assert done.returncode == 0, done.stderr
    assert set(repository.files) == {
        "LICENSE", "README.md", "config.json", "generation_config.json", "model.safetensors",
        "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
    }  # fmt: skip
    for path, content in repository.files.items():
        (tmp_path / "down").mkdir(exist_ok=True)
        (tmp_path / "down" / path).write_bytes(content)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "down").state_dict()
    mine = hub.load_policy(policy).state_dict()
    assert all((loaded[name] == mine[name]).all() for name in mine)


@pytest.fixture
def refused(monkeypatch) -> Callable[..., str]:
    """Run the command in this process, at the hub of an address; return the error."""

    def push(url: str, *words: str, token: str = TOKEN) -> str:
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        result = CliRunner().invoke(app, ["push", *words], env={"HF_TOKEN": token, "NO_PROXY": "*"})
        assert result.exit_code == 1
        assert token not in result.output
        return result.stderr

    return push


def test_a_refusal_of_the_hub_is_told_without_the_token(policy, server, refused):
    standing_in, url = server
    said = refused(url, str(policy), "acme/cafe", token="hf_anotherSecret")
    assert "acme/cafe was not uploaded: " in said
    assert "401" in said
    assert standing_in.repositories == {}


def test_private_does_not_publish_into_a_public_repository(policy, server, refused):
    standing_in, url = server
    standing_in.repositories["acme/cafe"] = Repository(private=False)
    said = refused(url, str(policy), "acme/cafe", "--private")
    assert "acme/cafe exists and is public, so --private would publish the model" in said
    assert standing_in.repositories["acme/cafe"].files == {}


def test_a_hub_that_is_not_there_is_an_error_with_the_remedy(policy, refused):
    said = refused(f"http://127.0.0.1:{closed_port()}", str(policy), "acme/cafe")
    assert "acme/cafe was not uploaded" in said
    assert "check the id, the network" in said


def dry_run(*words: str) -> str:
    done = CliRunner().invoke(app, ["push", *words, "--dry-run"])
    assert done.exit_code == 0, done.output
    return done.stdout


def metadata(card: str) -> dict[str, object]:
    return yaml.safe_load(card.split("---\n")[1])


def test_a_dry_run_prints_the_card_and_the_files_and_needs_no_hub(policy):
    printed = dry_run(str(policy), "acme/cafe")
    assert metadata(printed) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["ratchet"],
    }
    assert 'AutoModelForCausalLM.from_pretrained("acme/cafe")' in printed
    assert "It was not registered" in printed
    assert "README.md" in printed.splitlines()[-7]
    assert "tokenizer_config.json" in printed.splitlines()[-1]


def test_a_repository_without_a_valid_id_is_refused_before_anything_is_read(tmp_path):
    refused = CliRunner().invoke(app, ["push", str(tmp_path), "a b/c"])
    assert refused.exit_code == 1
    assert "expected an id of the hub, e.g. owner/name, found 'a b/c'" in refused.stderr


@pytest.mark.services
def test_the_card_tells_lineage_data_metrics_and_gate(
    mlflow_uri, tmp_path, monkeypatch, make_policy, tokenizer
):
    store = Store(tmp_path / "store")
    registry = Registry(mlflow_uri, store)
    addresses = {"RATCHET_STORE": str(store.root), "MLFLOW_TRACKING_URI": mlflow_uri}
    for name, value in {**addresses, "RAY_ADDRESS": "http://127.0.0.1:1"}.items():
        monkeypatch.setenv(name, value)

    def finish(step: str, **fields):
        save = partial(hub.save, make_policy(seed=len(step)), tokenizer)
        return finish_stage(store, step, save=save, **fields)

    base = {"name": "hub", "repo": "acme/base", "revision": "f" * 40}
    rows = {"name": "files", "path": "/home/ann/secret/orders.jsonl"}
    mixed = {"name": "mixed", "parts": [{"data": rows}, {"data": {**base, "repo": "acme/chat"}}]}
    sft = finish("sft", config={"base": base, "data": mixed})
    dpo = finish(
        "dpo", config={"data": rows, "reward": {"name": "cafe"}}, metrics={"accuracy": 0.875},
        parents={"policy": sft.key, "pairs": "0" * 64}, finished_at=sft.finished_at + 1,
    )  # fmt: skip
    lifecycle = "push-cafe"
    versions = [registry.register(manifest, lifecycle=lifecycle) for manifest in (sft, dpo)]
    version = versions[1]
    for attempt, wins in enumerate((20.0, 90.0), 1):
        metrics = {**METRICS, "won_prompts": wins, "lost_prompts": 100 - wins}
        verdict = judge(metrics, GateConfig(), attempt=attempt)
        match = Match(opponent="none", prompts="p", evaluation=f"e{attempt}")
        decision = Decision(based_on=0, evidence=verdict, match=match, who="ann", why="a|b")
        decide = ledger.promote if verdict.passed else ledger.refuse
        decide(registry, version.name, version.version, decision)

    card = dry_run(f"{lifecycle}@champion", "acme/cafe")
    assert metadata(card) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["ratchet", "sft", "dpo"],
        "base_model": ["acme/base"],
        "datasets": ["acme/chat"],
    }
    assert f"version {version.version} of `{version.name}`, made by the step `dpo`" in card
    lines = card.splitlines()
    assert (
        f"| sft | sft |  | base: acme/base@{'f' * 12}; data: orders.jsonl, "
        f"acme/chat@{'f' * 12} | {sft.key[:12]} |" in lines
    )
    assert (
        f"| dpo | dpo | policy: sft; pairs: {'0' * 12} | data: orders.jsonl; reward: cafe | "
        f"{dpo.key[:12]} |" in lines
    )
    assert "| accuracy | 0.875 |" in lines
    refused, passed = card.index("reject, decided by ann, a\\|b"), card.index("promote, decided by")
    assert refused < passed
    assert "| win_rate_low | > 0.5 |" in card
    assert "/home/ann" not in card
    assert str(tmp_path) not in card
