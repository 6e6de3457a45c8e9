"""What a flow's log says of a job, and when a job counts as alive."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import pytest

from stages.attempt import Attempt
from stages.configs.block import ResourcesConfig
from stages.runtime.ray_cluster import JobInfo, JobStatus
from tasks import follow
from tasks.follow import PENDING_SECONDS, LogTail, PendingNotice
from training_core.errors import TransientError

log = logging.getLogger("test_follow")
PENDING = JobInfo(JobStatus.PENDING, message="no node has 64 GPUs")


def notices(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_job_that_waits_is_named_once_with_what_it_needs(caplog):
    notice = PendingNotice("sft-1", ResourcesConfig(num_gpus=64))
    for now in (0.0, PENDING_SECONDS):
        notice.look(PENDING, now, log)
    assert notices(caplog) == []
    for now in (PENDING_SECONDS + 1, 2 * PENDING_SECONDS, 3 * PENDING_SECONDS):
        notice.look(PENDING, now, log)
    (said,) = notices(caplog)
    assert "job sft-1 waits for the cluster" in said
    assert "num_gpus: 64" in said
    assert "no node has 64 GPUs" in said


def test_a_job_that_runs_is_not_said_to_wait(caplog):
    notice = PendingNotice("sft-1", ResourcesConfig())
    for now in (0.0, 10 * PENDING_SECONDS):
        notice.look(JobInfo(JobStatus.RUNNING), now, log)
    assert notices(caplog) == []


def test_the_log_is_read_by_whole_lines_and_each_line_once(tmp_path: Path):
    path = tmp_path / "log.txt"
    tail = LogTail(path)
    assert tail.new_lines() == []
    path.write_bytes(b"one\ntw")
    assert tail.new_lines() == ["one"]
    assert tail.new_lines() == []
    with path.open("ab") as file:
        file.write("o\nthree \N{SNOWMAN}\n".encode())
    assert tail.new_lines() == ["two", "three \N{SNOWMAN}"]


class Cluster:
    """Answers every question in the same way."""

    def __init__(self, answer: JobInfo | TransientError) -> None:
        self._answer = answer

    def info(self, _: str) -> JobInfo:
        if isinstance(self._answer, TransientError):
            raise self._answer
        return self._answer


def beat(attempt: Attempt, seconds_ago: float) -> None:
    attempt.directory.mkdir(parents=True, exist_ok=True)
    attempt.heartbeat.write_text(json.dumps({"time": time.time() - seconds_ago, "pid": 1}))


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path / "stages" / "sft" / ("k" * 64) / "attempts" / "a1")


@pytest.mark.parametrize(
    "answer", [TransientError("no answer"), JobInfo(JobStatus.UNKNOWN)], ids=["silent", "forgot"]
)
def test_a_heartbeat_counts_where_the_cluster_knows_nothing(attempt, answer):
    beat(attempt, seconds_ago=1)
    assert follow._poll(attempt, Cluster(answer)).status is JobStatus.RUNNING


def test_without_a_recent_heartbeat_the_clusters_word_stands(attempt):
    beat(attempt, seconds_ago=3600)
    assert follow._poll(attempt, Cluster(JobInfo(JobStatus.UNKNOWN))).status is JobStatus.UNKNOWN
    with pytest.raises(TransientError, match="no answer"):
        follow._poll(attempt, Cluster(TransientError("no answer")))


def test_the_cluster_is_believed_where_it_knows(attempt):
    beat(attempt, seconds_ago=1)
    assert follow._poll(attempt, Cluster(JobInfo(JobStatus.FAILED, 1))).exit_code == 1
