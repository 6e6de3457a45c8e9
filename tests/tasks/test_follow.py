"""What a flow's log says of a job, and when a job counts as alive."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stages.attempt import Attempt
from stages.configs.block import ResourcesConfig
from stages.runtime.heartbeats import Heartbeat, identity_of, is_alive, this_place
from stages.runtime.ray_cluster import JobInfo, JobStatus
from tasks import follow
from tasks import outage as outages
from tasks.follow import PENDING_SECONDS, LogTail, PendingNotice
from tasks.outage import Outage
from training_core.errors import UnreachableError

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

    def __init__(self, answer: JobInfo | UnreachableError) -> None:
        self._answer = answer

    def info(self, _: str) -> JobInfo:
        if isinstance(self._answer, UnreachableError):
            raise self._answer
        return self._answer


def beat(attempt: Attempt, seconds_ago: float) -> None:
    attempt.directory.mkdir(parents=True, exist_ok=True)
    attempt.heartbeat.write_text(json.dumps({"time": time.time() - seconds_ago, "pid": 1}))


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path / "stages" / "sft" / ("k" * 64) / "attempts" / "a1")


@pytest.mark.parametrize(
    "answer", [UnreachableError("no answer"), JobInfo(JobStatus.UNKNOWN)], ids=["silent", "forgot"]
)
def test_a_heartbeat_counts_where_the_cluster_knows_nothing(attempt, answer):
    beat(attempt, seconds_ago=1)
    assert follow._poll(attempt, Cluster(answer)).status is JobStatus.RUNNING


def test_without_a_recent_heartbeat_the_clusters_word_stands(attempt):
    beat(attempt, seconds_ago=3600)
    assert follow._poll(attempt, Cluster(JobInfo(JobStatus.UNKNOWN))).status is JobStatus.UNKNOWN
    with pytest.raises(UnreachableError, match="no answer"):
        follow._poll(attempt, Cluster(UnreachableError("no answer")))


def test_the_cluster_is_believed_where_it_knows(attempt):
    beat(attempt, seconds_ago=1)
    assert follow._poll(attempt, Cluster(JobInfo(JobStatus.FAILED, 1))).exit_code == 1


# ---------------------------------------------------------------------------- clocks that jump

HOUR = 3600.0


def beat_of(attempt: Attempt, pid: int, seconds_ago: float, place: str) -> None:
    attempt.directory.mkdir(parents=True, exist_ok=True)
    record = {"time": time.time() - seconds_ago, "place": place, **identity_of(pid)}
    attempt.heartbeat.write_text(json.dumps(record))


@pytest.mark.parametrize("seconds_ago", [-HOUR, HOUR], ids=["back", "ahead"])
def test_a_clock_that_jumps_makes_no_live_process_dead_and_no_dead_one_alive(attempt, seconds_ago):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    beat_of(attempt, process.pid, seconds_ago, this_place())
    assert is_alive(attempt)
    process.kill()
    wait_for_zombie(process.pid)
    assert not is_alive(attempt)  # its parent has not read its exit code yet
    process.wait()
    assert not is_alive(attempt)


def wait_for_zombie(pid: int) -> None:
    while identity_of(pid)["started"] is not None:
        time.sleep(0.01)


def test_a_later_process_with_the_pid_is_not_the_one_that_beat(attempt):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    beat_of(attempt, process.pid, 0, this_place())
    beat = json.loads(attempt.heartbeat.read_text())
    attempt.heartbeat.write_text(json.dumps({**beat, "started": beat["started"] - 1}))
    assert not is_alive(attempt)
    process.kill()
    process.wait()


def test_of_another_machine_only_the_time_tells(attempt):
    beat_of(attempt, 1, 1, "another machine")
    assert is_alive(attempt)
    beat_of(attempt, 1, HOUR, "another machine")
    assert not is_alive(attempt)


def test_a_heartbeat_is_found_alive_while_it_beats(attempt):
    attempt.directory.mkdir(parents=True)
    with Heartbeat(attempt):
        while not attempt.heartbeat.exists():
            time.sleep(0.01)
        assert json.loads(attempt.heartbeat.read_text())["place"] == this_place() != ""
        assert is_alive(attempt)


# ---------------------------------------------------------------------------- an outage of Ray


def test_an_outage_is_waited_for_told_once_and_ends_after_its_limit(caplog, monkeypatch):
    monkeypatch.setattr(outages, "PAUSE_SECONDS", 0.0)
    caplog.set_level(logging.INFO)
    error = UnreachableError("the Ray cluster at http://head:8265 did not answer")
    outage = Outage(60, log)
    outage.end()
    for _ in range(3):
        outage.wait(error)
    outage.end()
    told = notices(caplog)
    assert told[0] == f"waiting up to 60 s: {error}"
    assert [text.split(" after ")[0] for text in told[1:]] == ["the Ray cluster answers again"]
    impatient = Outage(-1, log)
    with pytest.raises(UnreachableError, match="head:8265"):
        impatient.wait(error)
