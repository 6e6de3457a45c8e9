from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from html import unescape
from typing import Any

import mlflow
import pytest
from pydantic import BaseModel

from stages.runtime.store import Manifest, Store, record_files
from tasks.gate import GateConfig, judge
from tasks.refs import StageRef, ref_of
from tasks.report.formatting import change, duration, shown, with_error
from tasks.report.lifecycle import About, Lifecycle, Outcome, gather
from tasks.report.page import render

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


# ------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.853515625, "0.854"),
        (0.9996, "1.00"),
        (13.29296875, "13.3"),
        (4000.0, "4,000"),
        (1234.5, "1,234"),
        (3.4141e-07, "3.41e-07"),
        (-0.00828, "-0.00828"),
        (0.0, "0"),
        (None, "not measured"),
        (float("nan"), "not finite"),
    ],
)
def test_numbers_have_three_significant_digits_and_counts_stay_whole(value, expected):
    assert shown(value) == expected


def test_an_error_has_two_digits_and_its_value_as_many_decimals():
    assert with_error(0.558984375, 0.0146754) == "0.559 ± 0.015"
    assert with_error(0.558984375, None) == "0.559"
    assert change(0.0166, 1.0022) == "0.02 → 1.00"
    assert [duration(s) for s in (5.907, 59.7, 3601.0, None)] == [
        "5.91 s",
        "1 min 00 s",
        "1 h 00 min",
        "not measured",
    ]


# ------------------------------------------------------------------------- story


def test_each_step_says_what_it_improved(store):
    results = {s.ref.step: s.result for s in tell(store, lifecycle_in(store)).steps}

    assert results == {
        "sft": "held-out reward 0.559 ± 0.015",
        "reward_model": "held-out accuracy 0.854",
        "rejection_sft": "held-out reward 0.663 ± 0.015",
        "ppo": "held-out reward 0.853 ± 0.011",
        "evaluation": "win rate 0.889 vs SFT",
    }


def test_policies_are_named_by_the_steps_that_made_them_and_stand_in_the_flows_order(store):
    shuffled = {name: SUMMARY[name] for name in ("policy", "rejection_sft", "baseline")}

    judged = tell(store, lifecycle_in(store, shuffled)).judged

    assert [s.label for s in judged.scores] == ["SFT", "Rejection SFT", "PPO"]
    assert [a.reward for a in judged.prompts[0].answers] == [0.3, 0.7, 1.0]
    assert [a.is_best for a in judged.prompts[0].answers] == [False, False, True]


def test_several_dpo_rounds_without_ppo_and_a_champion_from_another_run(store):
    sft = finish(store, "sft", "sft", metrics={"examples": 512.0})
    other = "ab" * 32
    metrics = {"train_pairs": 511.0, "accuracy": 0.98825}
    first = finish(store, "dpo_1", "dpo", metrics=metrics, parents={"policy": other})
    second = finish(store, "dpo_2", "dpo", metrics=metrics, parents={"policy": first.key})
    about = About("tiny", "iterative-dpo", "5f0c3a2e", 0.0, outside={other: "champion_3"})

    story = gather(store, [sft, first, second], Config(), about, Outcome(is_champion=True))
    text = text_of(render(story))

    assert [s.inputs[0].origin for s in story.steps[1:]] == ["champion_3", "dpo_1"]
    assert story.steps[0].result == "examples 512"
    assert "0.988 of 511 training pairs ranked right" in text
    assert "not measured: this run has no evaluation" in text
    assert "Reward model, held-out accuracy not measured" in text


# ------------------------------------------------------------------------- page


def test_the_page_shows_the_numbers_the_gate_and_the_lineage(store):
    refs = lifecycle_in(store)
    evidence = refs[-1].metrics | {"kl_to_reference": 2.0822810}
    verdict = judge(evidence, GateConfig(max_kl=1.5))
    outcome = Outcome(is_champion=False, model_version=7, verdict=verdict, against="SFT")

    text = text_of(render(tell(store, refs, outcome)))

    assert "tiny 1 January 1970, 00:00 UTC · flow full-rlhf · run 5f0c3a2e" in text
    assert "SFT 0.559 ± 0.015 → PPO 0.853 ± 0.011" in text
    assert "Win rate of PPO over SFT: 0.889 (0.859 to 0.918)" in text
    assert "Champion Not moved Version 7 stays a candidate." in text
    assert "The gate refused it against SFT: ✓ win rate low 0.859 > 0.5" in text
    assert "✗ KL to reference 2.08 <= 1.5" in text
    assert "Reward model, held-out accuracy 0.854" in text
    assert "tiny.policy/7 run 12.3 s 70706f000000" in text  # the key of the step ppo, 12 digits
    assert "PPO policy ← rejection_sft reward model ← reward_model" in text
    assert "learning_rate: 0.002" in text
    assert "torch 2.13.0+cpu" in text


def test_every_policy_answers_the_same_prompt_side_by_side(store):
    text = text_of(render(tell(store, lifecycle_in(store))))

    answers = (
        "SFT 0.300 one coffee . Rejection SFT 0.700 four coffee . PPO 1.00 four coffee . enjoy !"
    )
    assert f"four coffee please {answers}" in text


def test_a_response_cannot_write_into_the_page(store):
    html = render(tell(store, lifecycle_in(store)))

    assert "<script" not in html
    assert "&lt;script&gt;alert(&#39;tea&#39;)&lt;/script&gt;" in html


def test_what_was_not_measured_is_not_shown_as_zero(store):
    # Rejection SFT has no scored response to prompt 2, and no number for KL or the interval.
    # PPO's rewards were not judged, so it has no dot in the plot either.
    unjudged = {**SUMMARY, "policy": {"win_rate": 0.888671875}}

    html = render(tell(store, lifecycle_in(store, unjudged)))
    text = text_of(html)

    assert "SFT 0.559 ± 0.015 → PPO not measured" in text
    assert "Rejection SFT 0.663 ± 0.015 0.635 PPO not measured 0.889" in text
    assert "Rejection SFT no reward no scored response" in text
    alt = re.search(r'aria-label="(Mean held-out reward[^"]*)"', html)
    assert alt[1] == "Mean held-out reward: SFT 0.559 ± 0.015, Rejection SFT 0.663 ± 0.015"
    assert "± 0.0" not in text.replace("± 0.015", "")


def test_curves_that_a_stage_did_not_log_are_left_out(store):
    html = render(tell(store, lifecycle_in(store)))

    drawn = re.findall(r'aria-label="((?:sft|ppo|rejection_sft): [^"]*)"', html)
    assert drawn == [
        "sft: Loss from 4 to 0.133",  # 4 / 30
        "ppo: Reward from 0.500 to 0.900",
        "ppo: KL to the reference (nats per response) from 0 to 0.210",
    ]


def test_a_step_whose_manifest_is_gone_keeps_what_the_flow_knows(store):
    refs = lifecycle_in(store)
    (store.stage_dir("ppo", refs[3].key) / "manifest.json").unlink()

    text = text_of(render(tell(store, refs)))

    assert "PPO its manifest is gone" in text
    assert "tiny.policy/7 run 12.3 s" in text
    assert "PPO not measured" in text  # its cost


def test_the_page_needs_no_network(store):
    html = render(tell(store, lifecycle_in(store)))

    assert not re.search(r"(?:src|href)\s*=\s*[\"'](?!#)", html)
    assert not re.search(r"url\((?!#)|@import|<link", html)
    assert "http://" not in html
    assert "https://" not in html


def test_the_report_imports_no_torch_mlflow_or_prefect():
    heavy = "{'torch', 'mlflow', 'prefect'}"
    code = f"import sys, tasks.report.page; print(sorted({heavy} & sys.modules.keys()))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# ------------------------------------------------------------------------- MLflow


@pytest.mark.services
def test_a_retry_replaces_the_report_in_the_one_run_of_its_flow_run(
    registry, store, lifecycle, tmp_path
):
    page = tmp_path / "report.html"
    client = mlflow.MlflowClient(registry.mlflow.tracking_uri, registry.mlflow.tracking_uri)
    page.write_text("first")
    registry.runs.log_report(
        lifecycle, "full-rlhf", "run-1", page=page, metrics={"reward/ppo": 0.5}
    )
    page.write_text("second")

    metrics = {"reward/ppo": 0.853}
    url = registry.runs.log_report(lifecycle, "full-rlhf", "run-1", page=page, metrics=metrics)

    experiment = client.get_experiment_by_name(lifecycle).experiment_id
    (run,) = client.search_runs([experiment])
    assert (run.info.run_name, run.info.status) == ("full-rlhf", "FINISHED")
    assert run.data.metrics == metrics
    assert (store.root / "mlflow" / lifecycle / run.info.run_id).is_dir()
    kept = client.download_artifacts(run.info.run_id, "report.html", str(tmp_path))
    assert open(kept).read() == "second"  # noqa: PTH123, SIM115
    assert url.endswith(f"/runs/{run.info.run_id}/artifacts/report.html")
