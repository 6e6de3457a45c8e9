"""`ratchet receipt` and `ratchet reproduce`: a small stage is made again, byte by byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from flows.cli.main import app
from flows.model_use.version_receipt import VersionReceipt, receipt_of
from stages.runtime.manifest import Manifest
from stages.runtime.store import Store
from tests.stages.running import finish
from tests.tasks.real_services import finish_stage
from training_core.errors import ConfigError

ROWS = [{"prompt": f"{n} cups", "response": f"{n} cups please"} for n in ("one", "two", "six")] * 4
SMALL = {"name": "scratch", "hidden_size": 32, "num_heads": 2, "num_layers": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made")


@pytest.fixture(scope="module")
def made(folder: Path) -> Manifest:
    """An SFT of three steps."""
    rows = folder / "data" / "rows.jsonl"
    rows.parent.mkdir()
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    config = {
        "base": {**SMALL, "intermediate_size": 48},
        "chat_template": "roles",
        "data": {"name": "files", "path": str(rows)},
        "training": {"epochs": 1, "batch_size": 4, "max_tokens": 64},
    }
    return finish(Store(folder / "store"), "sft", config)


@pytest.fixture(scope="module")
def receipt(folder: Path, made: Manifest) -> Path:
    path = folder / "receipt.json"
    path.write_text(receipt_of("mine/1", made, Store(folder / "store")).text())
    return path


def reproduce(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


def changed(receipt: Path, **fields: Any) -> Path:
    """Write a receipt whose only stage differs in some fields."""
    content = json.loads(receipt.read_text())
    content["stages"][0] |= fields
    path = receipt.with_name("changed.json")
    path.write_text(json.dumps(content))
    return path


def test_a_receipt_has_what_the_stage_was_made_of_and_with(receipt, made):
    (stage,) = VersionReceipt.read(receipt).stages
    assert (stage.key, stage.digest, stage.version) == (made.key, made.digest, made.version)
    assert stage.config == made.config
    assert stage.data_digests.keys() == {"data.path"}
    assert stage.environment["torch"] == made.environment["torch"]
    assert "host" not in stage.environment
    assert stage.cost["seconds"] > 0


def test_a_stage_is_made_again_elsewhere_byte_by_byte_and_what_differs_is_told(
    receipt, made, folder, tmp_path
):
    data = tmp_path / "moved"
    data.mkdir()
    (data / "rows.jsonl").write_bytes((folder / "data" / "rows.jsonl").read_bytes())
    move = ("--move", f"{folder / 'data'}={data}")
    out = tmp_path / "again"
    done = reproduce(receipt, "--out", out, *move)
    assert done.exit_code == 0, done.output
    assert f"1 of 1, sft: the same digest, {made.digest[:12]}" in done.stdout
    assert "mine/1 was made again, byte by byte" in done.stdout
    again = Store(out).find("sft", made.key)
    assert again is not None
    assert (again.digest, again.metrics) == (made.digest, made.metrics)

    # A receipt that promises something else; the store has the stage, so nothing is done again.
    files = [{**file.model_dump(), "sha256": "0" * 64} for file in made.files[:1]]
    others = [file.model_dump() for file in made.files[1:]]
    lies = {"digest": "f" * 64, "files": files + others, "metrics": {**made.metrics, "loss": 9.0}}
    differs = reproduce(changed(receipt, **lies), "--out", out, *move)
    assert differs.exit_code == 1
    told = f"1 of 1, sft: expected the digest ffffffffffff, found {made.digest[:12]}"
    assert told in differs.stdout
    assert f"file {made.files[0].path}: expected 000000000000 and found" in differs.stdout
    assert "metric loss: expected 9.0, found None" in differs.stdout


def test_data_that_is_no_longer_what_was_read_is_told_before_anything_runs(receipt, tmp_path):
    digests = {"data.path": "0" * 64}
    done = reproduce(changed(receipt, data_digests=digests), "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert "step 'sft', data.path: expected the data with the digest 000000000000" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_stage_of_another_version_cannot_be_made_as_it_was(receipt, made, tmp_path):
    environment = {"ratchet-rlhf": "0.0.9", "commit": "abc"}
    old = changed(receipt, version=made.version + 1, environment=environment)
    done = reproduce(old, "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert f"was made by version {made.version + 1} of the stage 'sft'" in done.stderr
    assert "use Ratchet 0.0.9 at commit abc" in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"result": "x"}', "is not a receipt of `ratchet receipt`: stages: Field required"),
        ("{", "expected a JSON object"),
    ],
)
def test_a_file_that_is_no_receipt_is_told(tmp_path, text, said):
    path = tmp_path / "receipt.json"
    path.write_text(text)
    done = reproduce(path, "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert said in done.stderr
    absent = reproduce(tmp_path / "no.json", "--out", tmp_path / "out")
    assert "there is no receipt" in absent.stderr
    wrong = reproduce(path, "--out", tmp_path / "out", "--move", "nowhere")
    assert wrong.exit_code == 1


def test_a_receipt_is_refused_if_the_store_lacks_what_a_stage_was_made_of(tmp_path):
    store = Store(tmp_path / "store")
    parents, digests = {"policy": "a" * 64}, {"policy": "b" * 64}
    dpo = finish_stage(store, "dpo", parents=parents, input_digests=digests)
    with pytest.raises(ConfigError, match="step 'dpo' took the result bbbbbbbbbbbb"):
        receipt_of("mine/2", dpo, store)
