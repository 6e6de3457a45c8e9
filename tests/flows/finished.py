"""A finished `raft`, whose stages were finished by hand under the keys that the flow works out."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun

from flows.cli.plan import Plan
from flows.config.presets import load_config
from flows.raft import raft
from flows.raft import steps as raft_steps
from flows.recipe.lifecycle_report import LifecycleSummary
from stages.configs.block import StageConfig
from tasks.connections import Connections
from tasks.refs import StageRef, ref_of
from tasks.stage_task import StageJob, request_for
from tests.tasks.real_services import finish_stage

SCORES = {
    "baseline": {
        "mean_reward": 0.5,
        "reward_stderr": 0.02,
        "win_rate": 0.5,
        "response_tokens": 9.0,
    },
    "policy": {
        "mean_reward": 0.75,
        "reward_stderr": 0.01,
        "win_rate": 0.8,
        "win_rate_low": 0.7,
        "response_tokens": 10.0,
    },
}
FOUND = {
    **SCORES["policy"],
    "kl_to_baseline": 1.5,
    "judged_prompts": 256.0,
    "judged_fraction": 1.0,
    "won_prompts": 204.0,
    "lost_prompts": 51.0,
    "reward_gain": 0.25,
}
SAMPLE = {"policy": "policy", "prompt_id": "1", "prompt": "tea?", "response": "tea!", "reward": 1.0}
SAMPLES = [SAMPLE, SAMPLE | {"policy": "baseline", "response": "no", "reward": 0.5}]


@dataclass
class Finisher(Plan):
    """Walks a recipe and finishes each step by hand, instead of only looking whether it is."""

    made: list[str] = field(default_factory=list)
    skips: frozenset[str] = frozenset()
    measured: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def run(self, step: str, config: StageConfig, **inputs: StageRef | None) -> StageRef:
        if step in self.skips:
            return super().run(step, config, **inputs)
        given = {role: ref for role, ref in inputs.items() if ref is not None}
        job = StageJob(step, config, given, self.config.name)
        request = request_for(job, self.connections)
        is_judged = job.spec.makes == "evaluation"
        rows = "".join(json.dumps(row) + "\n" for row in SAMPLES)
        files = {"summary.json": json.dumps(SCORES), "samples.jsonl": rows}
        manifest = finish_stage(
            self.connections.store,
            step,
            seed=len(self.made),
            kind=job.spec.makes,
            files=files if is_judged else None,
            stage=request.stage,
            key=request.key,
            config=request.config,
            parents=request.parents,
            metrics=self.measured.get(step, FOUND if is_judged else {"rows": 3.0}),
            cost={"seconds": 12.5},
        )
        self.made.append(step)
        self.refs[step] = ref_of(manifest, step, is_reused=True)
        return self.refs[step]


@dataclass
class Finished:
    """A finished `raft`: what it was started with and what it returned."""

    overrides: dict[str, object]
    connections: Connections
    run: FlowRun
    summary: LifecycleSummary

    @property
    def name(self) -> str:
        return str(self.overrides["name"])


@pytest.fixture
def finished(client: SyncPrefectClient, connections: Connections) -> Finished:
    overrides = {"name": f"tiny-{uuid.uuid4().hex[:8]}", "raft": {"rounds": 1}}
    raft_steps(Finisher(load_config("tiny", overrides), connections, None))
    state = raft("tiny", overrides=overrides, return_state=True)
    run = client.read_flow_run(state.state_details.flow_run_id)
    return Finished(overrides, connections, run, state.result())
