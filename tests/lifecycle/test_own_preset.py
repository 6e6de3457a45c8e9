"""A preset and a flow of a person's own, outside of the repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from flows.config.presets import ROOT
from tests.lifecycle.driver import Lifecycle
from tests.own_project import own_project

pytestmark = pytest.mark.lifecycle


def test_own_pairs_move_a_registered_policy_and_a_flow_of_ones_own_goes_on(
    lifecycle: Lifecycle, demo_run: UUID, tmp_path: Path
) -> None:
    own_project(tmp_path, start="models:/tiny.policy@sft")
    run = lifecycle.run("full-rlhf/tiny", preset=str(tmp_path / "mine.yaml"))
    assert run.state_name == "Completed"
    sft, dpo = lifecycle.manifest_of(demo_run, "sft"), lifecycle.manifest_of(run.id, "dpo")
    assert dpo.parents == {"policy": sft.key, "reference": sft.key}
    assert dpo.digest != sft.digest
    assert dpo.metrics["accuracy"] > 0.5
    evaluation = lifecycle.manifest_of(run.id, "evaluation")
    assert evaluation.parents == {"policy": dpo.key, "baseline": sft.key}
    assert {row["step"] for row in lifecycle.summary(run.id)["rows"]} == {"dpo", "evaluation"}
    pinned = lifecycle.config_of(run.id)["given"]["sft"]["model"]["uri"]
    assert pinned.rpartition("/")[2].isdigit()

    done = subprocess.run(
        [sys.executable, "again.py"],
        cwd=tmp_path,
        env={**os.environ, **lifecycle.environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "again_1 is done" in done.stdout + done.stderr
    assert "submitted job dpo-" in done.stdout + done.stderr
