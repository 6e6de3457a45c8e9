"""Running it again: nothing that is finished is redone, and what was killed goes on."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from uuid import UUID

import pytest

from benchmarks.disturbed import Machine
from stages.files import read_jsonl
from tests.lifecycle.driver import QUICK_ROLLOUTS, Lifecycle
from tests.lifecycle.finished_demo import RATCHET

pytestmark = pytest.mark.lifecycle

STEPS = 60
"""Rounds of PPO in the preset `tiny`."""

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


def test_a_forced_ppo_makes_the_same_bytes_whatever_is_killed_meanwhile(
    lifecycle: Lifecycle, demo_run: UUID
) -> None:
    """A short form of `make chaos`: a flow, a stage, and then every service but Ray."""
    machine, made = Machine(lifecycle.store.root.parent), lifecycle.manifest_of(demo_run, "ppo")
    run_id = lifecycle.start("full-rlhf/tiny", force=["ppo"])
    first = lifecycle.attempt(run_id, "ppo", "a2")

    assert machine.kill("flow")
    lifecycle.until(lambda: lifecycle.client.read_flow_run(run_id).run_count == 2)
    lifecycle.until(lambda: "attached to job ppo-" in lifecycle.log(run_id))  # while it runs
    following = first.directory.with_name("a3")
    assert not following.exists()

    lifecycle.until(lambda: any(first.checkpoints.glob("step-*/COMPLETE")))
    assert machine.kill("stage")
    killed = {name: machine.record(name).pid for name in ("prefect", "mlflow", "worker")}
    assert all(machine.kill(name) for name in killed)
    assert lifecycle.wait(run_id, seconds=600).state_name == "Completed"
    lifecycle.until(lambda: all(machine.record(name).pid != pid for name, pid in killed.items()))

    steps = lifecycle.steps(run_id)
    assert steps.pop("ppo") == "Completed"
    assert set(steps.values()) == {"Reused"}  # the evaluation, too: it found the policy it knew
    resumed = re.search(r"resumed at step (\d+) from", (following / first.log.name).read_text())
    assert resumed, "the log must say where it went on"
    assert int(resumed.group(1)) >= 5
    rounds = [line["step"] for line in read_jsonl(following / first.metrics.name)]
    assert rounds == [*range(1, STEPS + 1)]
    again = lifecycle.manifest_of(run_id, "ppo")
    assert (again.attempt, again.digest) == ("a3", made.digest)


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
