"""Lifecycles that were finished by hand, for tests of the report."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from html import unescape
from typing import Any

from pydantic import BaseModel

from stages.runtime.manifest import Manifest, record_files
from stages.runtime.store import Store
from tasks.refs import StageRef, ref_of
from tasks.report.lifecycle import About, Lifecycle, Outcome, gather

SUMMARY = {
    "baseline": {"mean_reward": 0.558984375, "reward_stderr": 0.0146754, "win_rate": 0.5},
    "rejection_sft": {"mean_reward": 0.6634765, "reward_stderr": 0.0151286, "win_rate": 0.634765},
    "policy": {
        "mean_reward": 0.8528125,
        "reward_stderr": 0.0105779,
        "win_rate": 0.888671875,
        "win_rate_low": 0.859375,
        "win_rate_high": 0.91801757,
        "kl_to_baseline": 2.0822810,
    },
}
SAMPLES = [
    ("baseline", "1", "four coffee please", "one coffee .", 0.3),
    ("baseline", "2", "two tea please", "<script>alert('tea')</script>", 0.4),
    ("rejection_sft", "1", "four coffee please", "four coffee .", 0.7),
    ("policy", "1", "four coffee please", "four coffee . enjoy !", 1.0),
    ("policy", "2", "two tea please", "two tea .", 0.8),
]
ABOUT = About("tiny", "full-rlhf", "5f0c3a2e", at=0.0)
"""Unix time 0 is 1 January 1970, 00:00."""


class Config(BaseModel):
    name: str = "tiny"
    learning_rate: float = 2e-3


def finish(
    store: Store,
    step: str,
    stage: str,
    kind: str = "policy",
    *,
    files: Mapping[str, str] | None = None,
    curve: Sequence[Mapping[str, float]] = (),
    **fields: Any,
) -> StageRef:
    """Finish a stage by hand: its artifact, its curve and its manifest."""
    draft = {
        "step": step,
        "version": 1,
        "key": step.encode().hex().ljust(64, "0"),
        "attempt": "a1",
        "config": {},
        "input_digests": {},
        "parents": {},
        "metrics": {},
        "environment": {"torch": "2.13.0+cpu"},
        "cost": {"seconds": 12.34},
        "finished_at": time.time(),
    } | fields
    attempt = store.attempt(stage, draft["key"], "a1")
    attempt.artifact.mkdir(parents=True)
    for name, text in (files or {"data.jsonl": "{}\n"}).items():
        (attempt.artifact / name).write_text(text)
    lines = [{"step": i, "time": 0.0, "metrics": m} for i, m in enumerate(curve, 1)]
    attempt.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    records, digest = record_files(attempt.artifact)
    manifest = Manifest(stage=stage, kind=kind, files=records, digest=digest, **draft)
    assert store.publish(manifest)
    return ref_of(manifest, step, is_reused=step == "sft")


def lifecycle_in(store: Store, summary: Mapping[str, Any] = SUMMARY) -> list[StageRef]:
    """SFT, reward model, rejection SFT, PPO and their evaluation."""
    keys = ("policy", "prompt_id", "prompt", "response", "reward")
    rows = [json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in SAMPLES]
    sft = finish(store, "sft", "sft", curve=[{"sft/loss": 4.0 / i} for i in range(1, 31)])
    accuracy = {"heldout_accuracy": 0.853515625}
    judge = finish(
        store,
        "reward_model",
        "reward_model",
        "reward_model",
        metrics=accuracy,
        parents={"policy": sft.key},
    )
    best = finish(store, "rejection_sft", "sft", parents={"policy": sft.key})
    rounds = [{"ppo/reward": 0.5, "ppo/kl": 0.0}, {"ppo/reward": 0.9, "ppo/kl": 0.21}]
    ppo = finish(
        store, "ppo", "ppo", curve=rounds, parents={"policy": best.key, "reward_model": judge.key}
    )
    parents = {"policy": ppo.key, "baseline": sft.key, "policy_rejection_sft": best.key}
    evaluation = finish(
        store,
        "evaluation",
        "evaluation",
        "evaluation",
        files={"summary.json": json.dumps(summary), "samples.jsonl": "".join(rows)},
        config={"reward": {"name": "cafe"}},
        metrics=summary["policy"],
        parents=parents,
    )
    return [sft, judge, best, ppo.model_copy(update={"model_version": 7}), evaluation]


def tell(store: Store, refs: Sequence[StageRef], outcome: Outcome | None = None) -> Lifecycle:
    return gather(store, refs, Config(), ABOUT, outcome or Outcome(is_champion=False))


def text_of(html: str) -> str:
    """What a reader sees, with single spaces."""
    bare = re.sub(r"<style>.*?</style>|<svg.*?</svg>", " ", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", bare)).split())
