"""Running it again: nothing that is finished is redone, and what was killed goes on."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from uuid import UUID

import pytest

from tests.lifecycle.driver import FEW_JUDGED, Lifecycle

pytestmark = pytest.mark.lifecycle

BEFORE_PPO = [
    "sft",
    "reward_model",
    "rejection_sampling",
    "rejection_sft",
    "preference_pairs_1",
    "dpo_1",
]


def running_attempt(lifecycle: Lifecycle, stage: str, known: set[Path]) -> Path:
    """The new attempt at `stage`, once its process beats."""

    def find() -> Path | None:
        new = lifecycle.attempts(stage) - known
        return next((a for a in new if (a / "heartbeat.json").exists()), None)

    return lifecycle.until(find)


def test_a_second_run_finds_every_stage_done(lifecycle: Lifecycle, demo_run: UUID) -> None:
    before = {m.key: m for m in lifecycle.store.manifests()}
    run = lifecycle.run("full-rlhf/tiny")
    assert run.state_name == "Completed"
    assert set(lifecycle.steps(run.id).values()) == {"Reused"}
    assert {m.key: m for m in lifecycle.store.manifests()} == before
    assert lifecycle.row(run.id, "ppo")["version"] == lifecycle.row(demo_run, "ppo")["version"]


def test_another_kl_coef_reruns_ppo_only_and_a_killed_ppo_resumes(lifecycle: Lifecycle) -> None:
    known = lifecycle.attempts("ppo")
    overrides = {"ppo": {"kl_coef": 0.1, "steps": 12}, **FEW_JUDGED}
    run_id = lifecycle.start("full-rlhf/tiny", overrides=overrides)
    attempt = running_attempt(lifecycle, "ppo", known)
    lifecycle.until(lambda: any((attempt / "checkpoints").glob("step-*/COMPLETE")))
    os.kill(json.loads((attempt / "heartbeat.json").read_text())["pid"], signal.SIGKILL)

    run = lifecycle.wait(run_id)
    assert run.state_name == "Completed"
    steps = lifecycle.steps(run_id)
    assert {steps[step] for step in BEFORE_PPO} == {"Reused"}
    assert steps["ppo"] == steps["evaluation"] == "Completed"
    assert lifecycle.says(run_id, "resumed at step")
    resumed = re.search(r"resumed at step (\d+) from", lifecycle.log(run_id))
    assert resumed, "the log must say where it went on"
    assert int(resumed.group(1)) >= 5
    second = attempt.with_name("a2")
    curve = [
        json.loads(line)["step"] for line in (second / "metrics.jsonl").read_text().splitlines()
    ]
    assert curve == list(range(1, 13))
    assert lifecycle.manifest_of(run_id, "ppo").attempt == "a2"


def test_a_killed_flow_resumes_by_itself_and_attaches_to_its_running_job(
    lifecycle: Lifecycle,
) -> None:
    known = lifecycle.attempts("ppo")
    overrides = {"ppo": {"seed": 3, "steps": 20}, **FEW_JUDGED}
    run_id = lifecycle.start("full-rlhf/tiny", overrides=overrides)
    running_attempt(lifecycle, "ppo", known)
    pid = lifecycle.until(lambda: lifecycle.client.read_flow_run(run_id).infrastructure_pid)
    os.kill(int(str(pid).rsplit(":", 1)[-1]), signal.SIGKILL)
    lifecycle.until(lambda: lifecycle.client.read_flow_run(run_id).run_count == 2)

    assert lifecycle.wait(run_id).state_name == "Completed"
    assert lifecycle.says(run_id, "attached to job ppo-")
    assert len(lifecycle.attempts("ppo") - known) == 1


def test_bad_data_fails_once_with_the_row_and_retry_goes_on_after_it_is_mended(
    lifecycle: Lifecycle, tmp_path: Path
) -> None:
    prompts = tmp_path / "held_out.jsonl"
    asked = "hello i would like two tea and one cake please"
    prompts.write_text(json.dumps({"prompt": asked}) + "\n" + json.dumps({"ask": asked}) + "\n")
    data = {"name": "files", "path": str(prompts)}
    run_id = lifecycle.start("full-rlhf/tiny", overrides={"evaluation": {"prompts": data}})
    assert lifecycle.wait(run_id).state_name == "Failed"
    reason = "held_out.jsonl, row 2: there is no field 'prompt' (found: ask)"
    assert lifecycle.says(run_id, reason)
    log = lifecycle.log(run_id)
    assert log.count("submitted job evaluation-") == 1  # what a person has to mend is not retried

    rows = [
        {"prompt": f"hello i would like {n} tea and {m} cake please"}
        for n in ("one", "two")
        for m in ("one", "five")
    ]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lifecycle.retry(run_id)
    lifecycle.until(lambda: lifecycle.client.read_flow_run(run_id).run_count == 2)
    assert lifecycle.wait(run_id).state_name == "Completed"
    assert lifecycle.steps(run_id)["ppo"] == "Reused"
    assert lifecycle.manifest_of(run_id, "evaluation").metrics["responses"] == 4
