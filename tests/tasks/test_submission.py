from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stages.configs.block import ResourcesConfig
from stages.runtime.ray_cluster import JobInfo, JobStatus
from stages.runtime.store import Request, Store
from tasks.submission import (
    attach_or_submit,
    join_waiters,
    leave_all_waiters,
    stop_abandoned,
)

KEY = "k" * 64


class Cluster:
    """A cluster in memory, with the three doings that submission needs."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobStatus] = {}
        self.requests: list[str] = []
        self.before_answer = lambda: None
        self._lock = threading.Lock()

    def submit(
        self, job_id: str, request: Path, resources: ResourcesConfig, metadata: object
    ) -> None:
        del resources, metadata
        content = request.read_text()
        with self._lock:
            if job_id not in self.jobs:
                self.jobs[job_id] = JobStatus.RUNNING
                self.requests.append(content)

    def info(self, job_id: str) -> JobInfo:
        self.before_answer()
        return JobInfo(self.jobs.get(job_id, JobStatus.UNKNOWN))

    def stop(self, job_id: str) -> None:
        self.jobs[job_id] = JobStatus.STOPPED


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def request_of(key: str = KEY, step: str = "sft") -> Request:
    return Request(
        stage="sft", step=step, key=key, config={}, inputs={}, input_digests={}, parents={}
    )


def submit(store: Store, cluster: Cluster, request: Request | None = None):
    return attach_or_submit(store, cluster, request or request_of(), ResourcesConfig())


def test_the_first_caller_submits_and_the_second_attaches(store, cluster):
    first, was_there = submit(store, cluster)
    assert (first.job_id, was_there) == (f"sft-{KEY[:12]}-a1", False)
    assert submit(store, cluster) == (first, True)


def test_a_job_that_ended_without_a_manifest_is_followed_by_another(store, cluster):
    first, _ = submit(store, cluster)
    cluster.jobs[first.job_id] = JobStatus.FAILED

    second, was_there = submit(store, cluster)

    assert (second.name, was_there) == ("a2", False)


def test_a_folder_that_a_person_copied_does_not_stop_the_next_attempt(store, cluster):
    first, _ = submit(store, cluster)
    cluster.jobs[first.job_id] = JobStatus.FAILED
    (first.directory.parent / "a1x").mkdir()

    second, was_there = submit(store, cluster)

    assert (second.name, was_there) == ("a2", False)


@pytest.mark.parametrize("attempt", range(10))
def test_callers_at_once_share_one_attempt_and_one_whole_request(store, cluster, attempt):
    callers = 6
    barrier = threading.Barrier(callers)

    def call(number: int):
        barrier.wait()
        return submit(store, cluster, request_of(step=f"sft_{number}"))

    with ThreadPoolExecutor(callers) as pool:
        found = list(pool.map(call, range(callers)))

    assert {a.job_id for a, _ in found} == {f"sft-{KEY[:12]}-a1"}
    assert sum(not was_there for _, was_there in found) == 1
    assert [p.name for p in store.attempts("sft", KEY)] == ["a1"]
    (content,) = cluster.requests
    assert Request.model_validate_json(content).step.startswith("sft_")


def test_what_was_finished_while_the_caller_looked_is_not_started_again(store, cluster, finish):
    manifest = finish("sft", kind="dataset")  # its job a1 has just ended
    cluster.jobs[f"sft-{manifest.key[:12]}-a1"] = JobStatus.SUCCEEDED

    assert submit(store, cluster, request_of(manifest.key)) == manifest

    assert [p.name for p in store.attempts("sft", manifest.key)] == ["a1"]


def test_a_process_that_beats_is_attached_to_though_the_cluster_forgot_it(store, cluster):
    first, _ = submit(store, cluster)
    first.heartbeat.write_text(json.dumps({"time": time.time()}))
    first.log.touch()
    cluster.jobs.clear()

    assert submit(store, cluster) == (first, True)


# ------------------------------------------------------------------------------ waiters


@pytest.mark.parametrize(("others_that_go_on", "is_stopped"), [((), True), (("bo",), False)])
def test_a_job_stops_unless_somebody_who_lives_waits_for_it(
    store, cluster, others_that_go_on, is_stopped
):
    attempt, _ = submit(store, cluster)
    for waiter in ("ann", "bo", "crashed"):
        join_waiters(store, request_of(), waiter)

    stopped = stop_abandoned(store, cluster, "ann", lambda other: other in others_that_go_on)

    assert stopped == ([attempt.job_id] if is_stopped else [])
    assert cluster.info(attempt.job_id).status.is_live is not is_stopped


def test_who_never_waited_stops_nothing(store, cluster):
    attempt, _ = submit(store, cluster)
    join_waiters(store, request_of(), "ann")

    assert stop_abandoned(store, cluster, "bo", lambda _: False) == []
    assert cluster.info(attempt.job_id).status.is_live


def test_a_run_that_failed_for_good_waits_for_nothing(store, cluster):
    for key in (KEY, "l" * 64):
        join_waiters(store, request_of(key), "ann")
        join_waiters(store, request_of(key), "bo")

    leave_all_waiters(store, "ann")

    left = {p.name for p in (store.root / "stages").glob("*/*/waiters/*")}
    assert left == {"bo"}


def test_a_job_is_named_after_its_attempt(store):
    assert store.attempt("sft", KEY, "a3").job_id == f"sft-{KEY[:12]}-a3"
