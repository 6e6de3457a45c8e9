"""Running it again: nothing that is finished is redone, and what was killed goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from uuid import UUID

import pytest

from stages.files import read_jsonl
from tests.lifecycle.driver import FEW_JUDGED, QUICK_ROLLOUTS, Lifecycle
from tests.lifecycle.finished_demo import RATCHET

pytestmark = pytest.mark.lifecycle

STEPS = 60
"""Of PPO; it must last until a killed flow has come back."""

BEFORE_PPO = [
    "sft",
    "reward_model",
    "rejection_sampling",
    "rejection_sft",
    "preference_pairs_1",
    "dpo_1",
]


def test_a_second_run_finds_every_stage_done(lifecycle: Lifecycle, demo_run: UUID) -> None:
    before = {m.key: m for m in lifecycle.store.manifests()}
    run = lifecycle.run("full-rlhf/tiny")
    assert run.state_name == "Completed"
    assert set(lifecycle.steps(run.id).values()) == {"Reused"}
    assert before.items() <= {m.key: m for m in lifecycle.store.manifests()}.items()
    assert lifecycle.row(run.id, "ppo")["version"] == lifecycle.row(demo_run, "ppo")["version"]


def test_ratchet_run_shows_that_every_step_is_reused_and_where_its_log_is(
    lifecycle: Lifecycle, demo_run: UUID
) -> None:
    done = ratchet(lifecycle, "run", "tiny")
    assert done.returncode == 0, done.stdout + done.stderr
    sft = lifecycle.row(demo_run, "sft")
    assert re.search(rf"^sft: Reused after .*, version {sft['version']}, ", done.stdout, re.M)
    for step in (*BEFORE_PPO, "ppo", "evaluation"):
        assert re.search(rf"^{step}: Reused", done.stdout, re.MULTILINE), done.stdout
    assert "champion         " in done.stdout
    assert "\x1b" not in done.stdout
    (run_id,) = re.findall(r"^id +(\S+)", done.stdout, re.MULTILINE)
    assert Path(re.findall(r"^report +(\S+)", done.stdout, re.MULTILINE)[0]).exists()
    log = lifecycle.store.attempt_of(lifecycle.manifest_of(demo_run, "sft")).log
    assert ratchet(lifecycle, "logs", run_id[:8], "sft").stdout == log.read_text()
    assert f"{run_id[:8]} " in ratchet(lifecycle, "runs").stdout


def ratchet(lifecycle: Lifecycle, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (*RATCHET, *arguments),
        env=lifecycle.environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_another_kl_coef_reruns_ppo_only_and_a_killed_flow_and_a_killed_ppo_go_on(
    lifecycle: Lifecycle,
) -> None:
    overrides = {"ppo": {"kl_coef": 0.1, "steps": STEPS}, **FEW_JUDGED}
    run_id = lifecycle.start("full-rlhf/tiny", overrides=overrides)
    attempt = lifecycle.attempt(run_id, "ppo")

    pid = lifecycle.until(lambda: lifecycle.client.read_flow_run(run_id).infrastructure_pid)
    os.kill(int(str(pid).rsplit(":", 1)[-1]), signal.SIGKILL)
    lifecycle.until(lambda: lifecycle.client.read_flow_run(run_id).run_count == 2)
    lifecycle.until(lambda: "attached to job ppo-" in lifecycle.log(run_id))  # while it runs
    assert [*attempt.directory.parent.glob("a[0-9]*")] == [attempt.directory]

    lifecycle.until(lambda: any(attempt.directory.glob("checkpoints/step-*/COMPLETE")))
    os.kill(json.loads(attempt.heartbeat.read_text())["pid"], signal.SIGKILL)
    run = lifecycle.wait(run_id)
    assert run.state_name == "Completed"
    steps = lifecycle.steps(run_id)
    assert {steps[step] for step in BEFORE_PPO} == {"Reused"}
    assert steps["ppo"] == steps["evaluation"] == "Completed"
    assert lifecycle.says(run_id, "resumed at step")
    resumed = re.search(r"resumed at step (\d+) from", lifecycle.log(run_id))
    assert resumed, "the log must say where it went on"
    assert int(resumed.group(1)) >= 5
    second = lifecycle.attempt(run_id, "ppo", "a2")
    assert [line["step"] for line in read_jsonl(second.metrics)] == [*range(1, STEPS + 1)]
    assert lifecycle.manifest_of(run_id, "ppo").attempt == "a2"


def test_bad_data_fails_once_with_the_row_and_retry_goes_on_after_it_is_mended(
    lifecycle: Lifecycle, tmp_path: Path
) -> None:
    prompts = tmp_path / "held_out.jsonl"
    asked = "hello i would like two tea and one cake please"
    prompts.write_text(json.dumps({"prompt": asked}) + "\n" + json.dumps({"ask": asked}) + "\n")
    evaluation = {"prompts": {"name": "files", "path": str(prompts)}, **QUICK_ROLLOUTS}
    run_id = lifecycle.start(
        "stage/default",
        step="evaluation",
        inputs={"policy": "models:/tiny.policy@ppo", "baseline": "models:/tiny.policy@sft"},
        overrides={"evaluation": evaluation},
    )
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
    made = [m for m in lifecycle.store.manifests() if m.stage == "evaluation"]
    assert [m.metrics["responses"] for m in made].count(4) == 1
