from __future__ import annotations

import re
import subprocess
import sys

import mlflow
import pytest
from made_lifecycles import SUMMARY, Config, finish, lifecycle_in, tell, text_of

from tasks.gate import GateConfig, judge
from tasks.registry import FlowRun
from tasks.report.lifecycle import About, Outcome, gather
from tasks.report.page import render

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
    counted = {"won_prompts": 210.0, "lost_prompts": 11.0, "judged_prompts": 256.0}
    counted |= {"judged_fraction": 1.0, "reward_gain": 0.294}
    verdict = judge(counted | {"kl_to_reference": 2.0822810}, GateConfig(max_kl=1.5), attempt=2)
    outcome = Outcome(is_champion=False, model_version=7, verdict=verdict, against="SFT")

    text = text_of(render(tell(store, refs, outcome)))

    assert "tiny 1 January 1970, 00:00 UTC · flow full-rlhf · run 5f0c3a2e" in text
    assert "SFT 0.559 ± 0.015 → PPO 0.853 ± 0.011" in text
    assert "Win rate of PPO over SFT: 0.889 (0.859 to 0.918)" in text
    assert "Champion Not moved Version 7 stays a candidate." in text
    assert "The gate rejected it against SFT, as the evidence is against it: ✓" in text
    # 210 of 221 decided prompts were won, of 256: 1/2 + (0.950 - 1/2) 0.863 = 0.889
    assert "✓ Win rate, lower bound 0.8" in text
    assert "✗ KL to the SFT policy (nats per response) 2.08 <= 1.5" in text
    assert "Attempt 2 against this opponent on these prompts." in text
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

    drawn = re.findall(r'aria-label="((?:sft|ppo|rejection_sft): [A-Z][^"]*)"', html)
    assert drawn == [
        "sft: Loss from 4 to 0.133",  # 4 / 30
        "ppo: Reward from 0.500 to 0.900",
        "ppo: KL to the reference (nats per response) from 0 to 0.210",
    ]


def test_a_held_out_curve_has_its_interval_and_one_of_some_points_has_none(store):
    def point(reward, half, passed):
        ends = {"ppo/heldout_reward_low": reward - half, "ppo/heldout_reward_high": reward + half}
        low = {"ppo/heldout_pass_at_1_low": 0.0} if half > 0.15 else {}
        return {"ppo/heldout_reward": reward, "ppo/heldout_pass_at_1": passed, **ends, **low}

    rounds = [point(0.25, 0.125, 0.0), {"ppo/policy_clip_fraction": 0.5}, point(0.5, 0.25, 0.75)]
    step = tell(store, [finish(store, "ppo", "ppo", curve=rounds)])

    reward, passed, clipped = step.steps[0].curves
    assert (reward.steps, reward.values) == ((1, 3), (0.25, 0.5))
    assert (reward.low, reward.high) == ((0.125, 0.25), (0.375, 0.75))
    assert (passed.values, passed.low, clipped.low) == ((0.0, 0.75), (), ())
    html = render(step)
    assert "ppo: Held-out reward from 0.250 to 0.500 (0.250 to 0.750)" in html
    assert "ppo: Held-out pass@1 from 0 to 0.750" in html
    figures = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    shaded = [figure for figure in figures if "opacity: 0.18" in figure]
    assert [re.search('aria-label="ppo: ([^"]*) from', f)[1] for f in shaded] == ["Held-out reward"]


def test_a_step_whose_manifest_is_gone_keeps_what_the_flow_knows(store):
    refs = lifecycle_in(store)
    (store.stage_dir("ppo", refs[3].key) / "manifest.json").unlink()

    text = text_of(render(tell(store, refs)))

    assert "PPO its manifest is gone" in text
    assert "tiny.policy/7 run 12.3 s" in text
    assert "PPO spent 12.3 s not measured" in text  # its cost


def test_the_page_needs_no_network(store):
    html = render(tell(store, lifecycle_in(store)))

    assert not re.search(r"src\s*=\s*[\"'](?!#)", html)
    assert {tag for tag in re.findall(r"<(\w+)[^>]*\bhref=", html) if tag != "use"} == {"a"}
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
    run = FlowRun("run-1", "full-rlhf", "tiny · ppo.kl_coef=0.1", started_at=1000.0)
    client = mlflow.MlflowClient(registry.mlflow.tracking_uri, registry.mlflow.tracking_uri)
    page.write_text("first")
    registry.flow_runs.report(lifecycle, run, page=page, metrics={"reward/ppo": 0.5}, note="one")
    page.write_text("second")

    metrics = {"reward/ppo": 0.853}
    url = registry.flow_runs.report(lifecycle, run, page=page, metrics=metrics, note="two")

    experiment = client.get_experiment_by_name(lifecycle).experiment_id
    (found,) = client.search_runs([experiment])
    assert (found.info.run_name, found.info.status) == (run.name, "FINISHED")
    assert (found.info.start_time, found.data.tags["mlflow.note.content"]) == (1_000_000, "two")
    assert found.data.metrics == metrics
    assert (store.root / "mlflow" / lifecycle / found.info.run_id).is_dir()
    kept = client.download_artifacts(found.info.run_id, "report.html", str(tmp_path))
    assert open(kept).read() == "second"  # noqa: PTH123, SIM115
    assert f"/runs/{found.info.run_id}/artifacts/report.html?workflowType=machine" in url
