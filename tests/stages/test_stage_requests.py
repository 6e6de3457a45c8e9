"""Requests of stages: what a process refuses before it starts, and what it says."""

import json
from pathlib import Path

import pytest

from stages.runtime.requests import attempt_of, read_request
from stages.runtime.store import Store
from training_core.errors import ConfigError, IntegrityError

SFT = {
    "base": {"name": "scratch", "hidden_size": 16, "num_layers": 1, "num_heads": 2},
    "chat_template": "roles",
    "training": {"max_tokens": 64},
}


def rows(folder: Path, number: int) -> Path:
    path = folder / "rows.jsonl"
    row = {"prompt": "tea please", "response": "one tea"}
    path.write_text("".join(json.dumps(row) + "\n" for _ in range(number)))
    return path


def with_files(path: Path) -> dict:
    return {**SFT, "data": {"name": "files", "path": str(path)}}


def changed(request: Path, **changes) -> Path:
    request.write_text(json.dumps(json.loads(request.read_text()) | changes))
    return request


def error_of(request: Path) -> dict:
    return json.loads(request.with_name("error.json").read_text())


def test_data_that_changed_after_the_key_was_computed_is_not_trained_on(
    store, tmp_path, write_request, run_here
):
    request = write_request(store, "sft", with_files(rows(tmp_path, 60)))
    rows(tmp_path, 5)
    assert run_here(request) == 20
    assert error_of(request)["kind"] == "IntegrityError"
    assert "input 'data.path' was changed after the run started" in error_of(request)["message"]
    assert "run the flow again" in error_of(request)["message"]
    assert store.manifests() == []


def test_an_artifact_that_changed_after_it_was_planned_is_not_read(
    store, tmp_path, write_request, run_here
):
    policy = tmp_path / "policy"
    policy.mkdir()
    (policy / "config.json").write_text("{}")
    request = write_request(store, "sft", with_files(rows(tmp_path, 5)) | {"base": None})
    digests = json.loads(request.read_text())["input_digests"] | {"policy": "0" * 64}
    changed(request, inputs={"policy": str(policy)}, input_digests=digests)
    assert run_here(request) == 20
    assert "expected the digest 000000000000, found" in error_of(request)["message"]
    changed(request, inputs={"policy": str(tmp_path / "gone")})
    assert run_here(request) == 20
    assert "input 'policy': expected the directory" in error_of(request)["message"]


def test_a_role_that_the_stage_does_not_have_is_refused(store, write_request, run_here):
    request = write_request(store, "sft", {**SFT, "data": {"name": "cafe", "size": 8}})
    changed(request, inputs={"polcy": "/tmp"})
    assert run_here(request) == 20
    assert error_of(request)["message"].startswith(
        "stage 'sft' takes no input 'polcy'; did you mean"
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"key": "../../x"}, "key: expected letters, digits"),
        ({"stage": "sft/../x"}, "stage: expected letters, digits"),
        ({"step": "a\nb"}, "step: expected letters, digits"),
        ({"inputs": {"../x": "/tmp"}}, "inputs.../x: expected letters, digits"),
        ({"inputs": {"policy": 3}}, "inputs.policy: Input should be a valid string"),
        ({"config": []}, "config: Input should be"),
        ({"extra": 1}, "extra: unknown key"),
    ],
)
def test_a_request_that_no_flow_wrote_is_refused(store, write_request, changes, reason):
    request = write_request(store, "sft", {**SFT, "data": {"name": "cafe", "size": 8}})
    changed(request, **changes)
    with pytest.raises(ConfigError) as caught:
        read_request(request)
    assert reason in str(caught.value)
    assert "a flow writes this file; run the flow again" in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"key": 1, "key": 2}', '{"a": Infinity}'])
def test_a_request_that_is_no_json_is_named(tmp_path, content):
    path = tmp_path / "request.json"
    path.write_text(content)
    with pytest.raises(
        IntegrityError, match=r"request\.json: expected a JSON object.*run the flow"
    ):
        read_request(path)


def test_a_request_of_another_key_is_not_run(store, write_request, run_here):
    request = write_request(store, "sft", {**SFT, "data": {"name": "cafe", "size": 8}})
    changed(request, key="k" * 64)
    assert run_here(request) == 20
    assert "expected the request of sft/" in error_of(request)["message"]


@pytest.mark.parametrize("place", ["", "a", "a1", "stages/sft/k/attempts/x", "stages/sft/k/a1"])
def test_a_request_elsewhere_is_refused_and_nothing_is_written(tmp_path, run_here, place, capsys):
    path = tmp_path / place / "request.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    assert run_here(path) == 20
    assert "expected a request at <store>/stages/<stage>/<stage key>" in capsys.readouterr().err
    assert [p.name for p in path.parent.iterdir()] == ["request.json"]
    assert run_here(tmp_path / "nosuch.json") == 20
    assert "there is no request file" in capsys.readouterr().err


def test_the_attempt_of_a_request_is_its_folder(tmp_path):
    attempt = Store(tmp_path).attempt("sft", "k", "a1")
    attempt.directory.mkdir(parents=True)
    attempt.request.write_text("{}")
    assert attempt_of(attempt.request) == attempt
