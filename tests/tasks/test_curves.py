"""Curves of stages in MLflow runs: each point arrives once."""

from __future__ import annotations

import json

import pytest
from real_services import client_of, steps_of, write_curve

from tasks.registry import ATTEMPT, MIRRORED

pytestmark = pytest.mark.services


def test_mirroring_again_adds_only_what_is_new(registry, tmp_path, lifecycle):
    curve = tmp_path / "metrics.jsonl"
    run_id = registry.runs.run_for(lifecycle, "sft", "sft", "a" * 64, attempt="a1")
    assert registry.runs.mirror_metrics(run_id, curve) is None

    write_curve(curve, range(5))
    assert registry.runs.mirror_metrics(run_id, curve) == 3  # step 4 may get another line
    assert registry.runs.mirror_metrics(run_id, curve) == 3
    assert steps_of(registry, run_id) == [0, 1, 2, 3]

    write_curve(curve, range(5, 7))
    assert registry.runs.mirror_metrics(run_id, curve, is_complete=True) == 6
    assert registry.runs.mirror_metrics(run_id, curve, is_complete=True) == 6
    assert steps_of(registry, run_id) == [0, 1, 2, 3, 4, 5, 6]
    assert client_of(registry).get_metric_history(run_id, "sft/loss")[3].value == 1.0  # 4 / (3 + 1)


def test_two_lines_of_one_step_both_arrive(registry, tmp_path, lifecycle):
    curve = tmp_path / "metrics.jsonl"
    run_id = registry.runs.run_for(lifecycle, "sft", "sft", "a" * 64, attempt="a1")
    write_curve(curve, range(3))
    registry.runs.mirror_metrics(run_id, curve)
    with curve.open("a") as file:
        line = {"step": 2, "time": 1002.5, "metrics": {"sft/heldout_loss": 1.5}}
        file.write(json.dumps(line) + "\n")

    registry.runs.mirror_metrics(run_id, curve, is_complete=True)

    assert steps_of(registry, run_id, "sft/heldout_loss") == [2]
    assert steps_of(registry, run_id) == [0, 1, 2]


def test_a_long_curve_goes_over_in_several_requests(registry, tmp_path, lifecycle):
    curve = tmp_path / "metrics.jsonl"
    run_id = registry.runs.run_for(lifecycle, "sft", "sft", "a" * 64, attempt="a1")
    write_curve(curve, range(1200))  # 2400 points

    registry.runs.mirror_metrics(run_id, curve, is_complete=True)

    assert steps_of(registry, run_id) == list(range(1200))
    assert client_of(registry).get_run(run_id).data.tags[MIRRORED] == "1199"


def test_an_interrupted_or_doubled_mirror_leaves_each_point_once(registry, tmp_path, lifecycle):
    curve = tmp_path / "metrics.jsonl"
    run_id = registry.runs.run_for(lifecycle, "sft", "sft", "a" * 64, attempt="a1")
    write_curve(curve, range(10))
    registry.runs.mirror_metrics(run_id, curve, is_complete=True)
    # What a slower second flow does: it puts the mark back, so that points are sent again.
    client_of(registry).set_tag(run_id, MIRRORED, "4")

    registry.runs.mirror_metrics(run_id, curve, is_complete=True)

    assert steps_of(registry, run_id) == list(range(10))


def test_registering_completes_the_curve(registry, store, finish, lifecycle):
    manifest = finish("sft")
    write_curve(store.attempt_of(manifest).metrics, range(4))

    ref = registry.register(manifest, lifecycle=lifecycle)

    assert steps_of(registry, ref.run_id) == [0, 1, 2, 3]
    assert client_of(registry).get_run(ref.run_id).info.start_time == 1_000_000


def test_a_stage_made_anew_has_another_run_and_its_own_curve(registry, store, finish, lifecycle):
    old = finish("sft", seed=1)
    write_curve(store.attempt("sft", old.key, "a1").metrics, range(8))
    first = registry.register(old, lifecycle=lifecycle)
    store.set_aside("sft", old.key, once_for="flow-2")
    assert registry.runs.run_for(lifecycle, "sft", "sft", old.key, attempt="a1") == first.run_id

    run_id = registry.runs.run_for(lifecycle, "sft", "sft", old.key, attempt="a2")
    curve = store.attempt("sft", old.key, "a2").metrics
    curve.parent.mkdir()
    write_curve(curve, range(3))
    registry.runs.mirror_metrics(run_id, curve, is_complete=True)

    assert run_id != first.run_id
    assert steps_of(registry, run_id) == [0, 1, 2]
    assert steps_of(registry, first.run_id) == list(range(8))


def test_an_attempt_that_resumes_an_unfinished_one_goes_on_in_its_run(registry, lifecycle):
    first = registry.runs.run_for(lifecycle, "sft", "sft", "a" * 64, attempt="a1")

    assert registry.runs.run_for(lifecycle, "sft", "sft", "a" * 64, attempt="a2") == first
    assert client_of(registry).get_run(first).data.tags[ATTEMPT] == "a2"
