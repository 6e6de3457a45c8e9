"""What a person does on Prefect's pages in a real Chromium: form, Cancel, Retry, approval."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId
from prefect.client.schemas.objects import FlowRun

from flows.full_rlhf import full_rlhf
from stages.runtime.ray_cluster import RayCluster
from tasks.ledger import history
from tasks.registry import Registry
from tests.lifecycle.driver import QUICK_ROLLOUTS, Lifecycle
from website.prefect_pages import PrefectPages

pytestmark = pytest.mark.lifecycle

DEPLOYMENT = "full-rlhf/tiny"


@pytest.fixture
def pages(lifecycle: Lifecycle, page: Page) -> PrefectPages:
    return PrefectPages(page, lifecycle.environment["PREFECT_API_URL"].removesuffix("/api"))


@pytest.fixture
def complaints(pages: PrefectPages) -> list[str]:
    return pages.complaints()


def newest_run(lifecycle: Lifecycle) -> FlowRun:
    found = lifecycle.client.read_deployment_by_name(DEPLOYMENT)
    of_deployment = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[found.id]))
    runs = lifecycle.client.read_flow_runs(flow_run_filter=of_deployment, limit=200)
    return max(runs, key=lambda run: str(run.created))


def test_a_run_starts_from_the_form_with_two_changes_and_ends_by_cancel(
    lifecycle: Lifecycle, pages: PrefectPages, complaints: list[str]
) -> None:
    pages.open_form(lifecycle.client.read_deployment_by_name(DEPLOYMENT).id)
    pages.add_change("ppo.steps=997")
    overrides = pages.open_block("overrides")
    ppo = pages.open_block("ppo", overrides)
    kl_coef = pages.field("kl_coef", ppo)
    expect(kl_coef).to_contain_text("at least 0. In tiny: 0.05.")
    kl_coef.locator("input").fill("0.3")
    pages.submit()
    assert complaints == []
    pages.leave()

    run = newest_run(lifecycle)
    lifecycle.started.append(run.id)
    assert run.parameters["changes"] == ["ppo.steps=997"]
    assert run.parameters["overrides"] == {"ppo": {"kl_coef": 0.3}}
    full_rlhf.validate_parameters(run.parameters)
    attempt = lifecycle.attempt(run.id, "ppo")
    config = lifecycle.config_of(run.id)["ppo"]
    assert (config["steps"], config["kl_coef"]) == (997, 0.3)

    pages.open_run(run.id)
    expect(pages.page.locator(".page-heading-flow-run")).to_contain_text(
        "tiny · ppo.kl_coef=0.3 · ppo.steps=997"
    )
    pages.cancel()
    pages.leave()
    assert lifecycle.wait(run.id).state_name == "Cancelled"
    cluster = RayCluster(lifecycle.environment["RAY_ADDRESS"])
    lifecycle.until(lambda: not cluster.info(attempt.job_id).status.is_live)
    pages.open_run(run.id)
    expect(pages.page.locator(".page-heading-flow-run .state-badge")).to_have_text("Cancelled")
    assert complaints == []


def test_a_failed_run_tells_why_and_goes_on_by_retry_after_its_cause_is_removed(
    lifecycle: Lifecycle, pages: PrefectPages, complaints: list[str], tmp_path: Path
) -> None:
    prompts = tmp_path / "held_out.jsonl"

    def ask_for(number: str) -> None:
        asked = [f"hello i would like {number} {what} please" for what in ("tea", "cake", "soup")]
        prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in asked))

    ask_for("nineteen")
    evaluation = {"prompts": {"name": "files", "path": str(prompts)}, **QUICK_ROLLOUTS}
    overrides = {"name": "tiny-pages", "evaluation": evaluation}
    run_id = lifecycle.start(DEPLOYMENT, overrides=overrides)
    assert lifecycle.wait(run_id).state_name == "Failed"

    pages.open_run(run_id)
    expect(pages.read_log()).to_contain_text("are unknown to the tokenizer, e.g. of 'nineteen'")
    pages.leave()
    ask_for("two")
    lifecycle.until_left(run_id)
    pages.open_run(run_id)
    pages.retry()
    pages.leave()
    lifecycle.until(lambda: lifecycle.client.read_flow_run(run_id).run_count == 2)
    assert lifecycle.wait(run_id).state_name == "Completed"
    steps = lifecycle.steps(run_id)
    assert steps.pop("evaluation") == "Completed"
    assert set(steps.values()) == {"Reused"}
    pages.open_run(run_id)
    expect(pages.page.locator(".page-heading-flow-run .state-badge")).to_have_text("Completed")
    assert complaints == []


def test_a_person_who_approves_on_the_page_makes_the_champion(
    lifecycle: Lifecycle, pages: PrefectPages, complaints: list[str]
) -> None:
    asked = ["name=tiny-asked", "promotion.approval.required=true"]
    run_id = lifecycle.start(DEPLOYMENT, changes=asked)
    lifecycle.until(lambda: lifecycle.client.read_flow_run(run_id).state_name == "Suspended")
    registry = Registry(lifecycle.environment["MLFLOW_TRACKING_URI"], lifecycle.store)
    assert history(registry, "tiny-asked.policy") == []

    pages.open_run(run_id)
    form = pages.open_approval()
    expect(form).to_contain_text("has passed the gate against the first policy")
    expect(form).to_contain_text("win_rate_low")
    pages.answer(form, "approve", "Ada", "polite, and no longer than before")
    pages.leave()
    assert lifecycle.wait(run_id).state_name == "Completed"
    (entry,) = history(registry, "tiny-asked.policy")
    assert (entry.verdict, entry.decided_by) == ("promote", "Ada")
    assert entry.reason == "polite, and no longer than before"
    pages.open_run(run_id)
    expect(pages.page.locator(".page-heading-flow-run .state-badge")).to_have_text("Completed")
    assert complaints == []
