"""TensorBoard and Weights & Biases, the real packages, as copies of metrics.jsonl."""

import importlib.util
import json
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_stage_process import SFT, wait_for_step

from stages.attempt import Attempt
from stages.configs.block import LoggingConfig
from stages.files import read_jsonl
from stages.runtime import trackers
from stages.runtime.metric_files import FileSink
from stages.runtime.store import Request, Store
from stages.runtime.trackers import open_sinks
from tests.stages.forked import StageProcess
from training_core.errors import ConfigError

needs_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="the extra `tensorboard` is not here"
)
needs_wandb = pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None, reason="the extra `wandb` is not here"
)
REQUEST = Request(
    stage="sft", step="sft", key="k" * 64, config={"seed": 0}, inputs={}, input_digests={},
    parents={},
)  # fmt: skip


def tensorboard_curve(attempt: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(attempt / "tensorboard"))
    events.Reload()
    return [(point.step, point.value) for point in events.Scalars(name)]


def offline_ids(attempt: Path) -> list[str]:
    return sorted(p.name.rsplit("-", 1)[0] for p in attempt.glob("wandb/offline-run-*"))


def records_of(path: Path) -> Iterator[bytes]:
    """Records of a small offline run: LevelDB's log format after a header of 7 bytes."""
    content, at = path.read_bytes(), 7
    while at + 7 <= len(content):
        _, size, kind = struct.unpack_from("<IHB", content, at)
        if at + 7 + size > len(content):
            return
        assert kind == 1  # whole; the file is smaller than a block
        yield content[at + 7 : at + 7 + size]
        at += 7 + size


def test_only_files_are_written_where_nothing_else_is_asked_for(tmp_path):
    with open_sinks(Attempt(tmp_path), REQUEST, LoggingConfig()) as sink:
        assert isinstance(sink, FileSink)
        sink.log(1, {"loss": 0.5})
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


@needs_tensorboard
def test_a_resumed_curve_is_whole_in_tensorboard_and_has_each_step_once(tmp_path):
    first, second = tmp_path / "a1", tmp_path / "a2"
    for attempt in (first, second):
        attempt.mkdir()
    logging = LoggingConfig(tensorboard=True)
    with open_sinks(Attempt(first), REQUEST, logging) as sink:
        sink.rewind(first / "metrics.jsonl", 0)
        for step in range(1, 6):  # the checkpoint was of step 3; 4 and 5 are done again
            sink.log(step, {"loss": 10.0 - step})
    with open_sinks(Attempt(second), REQUEST, logging) as sink:
        sink.rewind(first / "metrics.jsonl", 3)
        sink.log(4, {"loss": 6.0})
        sink.log(5, {"loss": 5.0})
    expected = [(step, 10.0 - step) for step in range(1, 6)]
    assert tensorboard_curve(second, "sft/loss") == expected
    with open_sinks(Attempt(second), REQUEST, logging) as sink:  # again, in the same folder
        sink.rewind(second / "metrics.jsonl", 4)
        sink.log(5, {"loss": 5.0})
    assert tensorboard_curve(second, "sft/loss") == expected


@needs_wandb
def test_every_attempt_at_a_stage_goes_on_with_one_run_of_weights_and_biases(tmp_path):
    from wandb.proto import wandb_internal_pb2

    logging = LoggingConfig.model_validate(
        {"wandb": {"project": "ratchet-tests", "mode": "offline"}}
    )
    with open_sinks(Attempt(tmp_path), REQUEST, logging) as sink:
        sink.log(1, {"loss": 0.5})
        sink.log(2, {"loss": 0.25})
    (run,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert run.stem == f"run-sft-{'k' * 32}"
    records: list[Any] = []
    deadline = time.monotonic() + 20
    while not any(r.WhichOneof("record_type") == "exit" for r in records):  # another process writes
        assert time.monotonic() < deadline
        records = [wandb_internal_pb2.Record.FromString(data) for data in records_of(run)]
    (begun,) = (r.run for r in records if r.WhichOneof("record_type") == "run")
    assert (begun.project, begun.run_id) == ("ratchet-tests", f"sft-{'k' * 32}")
    points = []
    for record in (r for r in records if r.WhichOneof("record_type") == "history"):
        items = {i.nested_key[0]: json.loads(i.value_json) for i in record.history.item}
        points.append((items["_step"], items["sft/loss"]))
    assert points == [(1, 0.5), (2, 0.25)]


@pytest.mark.parametrize(
    ("package", "logging"),
    [("tensorboard", {"tensorboard": True}), ("wandb", {"wandb": {"project": "p"}})],
)
def test_a_package_that_is_missing_is_named_before_anything_starts(
    tmp_path, monkeypatch, package, logging
):
    monkeypatch.setattr(trackers, "find_spec", lambda _: None)
    told = rf"logging\.{package} needs the package.*pip install ratchet-rlhf\[{package}\]"
    with (
        pytest.raises(ConfigError, match=told),
        open_sinks(Attempt(tmp_path), REQUEST, LoggingConfig.model_validate(logging)),
    ):
        pass


@needs_tensorboard
@needs_wandb
def test_a_stage_with_both_still_saves_when_it_is_asked_to_stop(store: Store, write_request):
    logging = {"tensorboard": True, "wandb": {"project": "ratchet-tests", "mode": "offline"}}
    longer = {**SFT, "training": {**SFT["training"], "epochs": 40}, "logging": logging}
    request = write_request(store, "sft", longer)
    process = StageProcess(request)
    wait_for_step(process, request.parent, 5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) == 143
    told = json.loads(request.with_name("error.json").read_text())
    assert told["kind"] == "StoppedError"
    lines = read_jsonl(request.parent / "metrics.jsonl")
    curve = tensorboard_curve(request.parent, "sft/loss")
    assert [step for step, _ in curve] == [line["step"] for line in lines]
    assert [value for _, value in curve] == pytest.approx(
        [line["metrics"]["sft/loss"] for line in lines], rel=1e-6
    )
    assert len(offline_ids(request.parent)) == 1
