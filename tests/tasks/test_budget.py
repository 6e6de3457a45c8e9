"""What a step takes is compared with its budgets while it runs, before it has taken them."""

from __future__ import annotations

import json

import pytest

from flows.config.budget_config import BudgetConfig
from flows.config.presets import load_config
from flows.recipe.allowances import allowances_for
from flows.recipe.outline import outline_of
from stages.configs.reward_model_config import RewardModelConfig
from stages.configs.sft_config import SftConfig
from tasks.budget import Allowance, BudgetWatch, Pace, hours_of
from tasks.follow import StepProgress
from tests.tasks.made_lifecycles import finish
from training_core.errors import BudgetError, ConfigError


def at(done: int, total: int = 100) -> StepProgress:
    return StepProgress(done, total, "")


def watch_of(hours: list[float], **fields) -> BudgetWatch:
    allowance = Allowance("budget.gpu_hours", 10.0, 4.0, "GPU-hours", 8.0)
    return BudgetWatch("ppo", [Allowance(**{**vars(allowance), **fields})], lambda: hours[0])


def test_a_step_is_stopped_when_its_pace_exceeds_the_budget_long_before_it_has_taken_it():
    hours = [0.0]
    watch = watch_of(hours)
    watch.look(None)
    watch.look(at(0))
    hours[0] = 0.1  # 10 % in 0.1 hours: 1 hour of 8 GPUs and the 4 of other steps make 12
    with pytest.raises(BudgetError) as error:
        watch.look(at(10))
    assert str(error.value) == (
        "step 'ppo': expected at most 10 GPU-hours (budget.gpu_hours), found 4.8 taken and 12 at "
        "this pace, with 10 of 100 done; it is stopped, and its checkpoint stays. Raise the budget "
        "in a new run, which goes on there"
    )


def test_a_step_whose_pace_fits_goes_on_and_a_forecast_may_be_a_tenth_too_high():
    hours = [0.0]
    watch = watch_of(hours, limit=11.0)
    watch.look(at(0))
    hours[0] = 0.1
    watch.look(at(10))  # 12 of 11
    hours[0] = 0.9
    with pytest.raises(BudgetError, match=r"found 11\.2 taken"):  # which is no forecast
        watch.look(at(99))


def test_nothing_is_started_if_other_steps_have_taken_all():
    with pytest.raises(BudgetError, match=r"found 10\.5 taken and 10\.5 at this pace; it is"):
        watch_of([0.0], taken=10.5).look(None)


def test_without_gpus_a_budget_of_gpu_hours_stops_nothing():
    watch_of([500.0], per_hour=0.0).look(at(1))


def test_a_pace_needs_a_minute_and_a_fiftieth_of_the_work_and_begins_anew_with_each_part():
    pace = Pace()
    assert pace.hours_ahead(None, 0.0) == 0
    assert pace.hours_ahead(at(50), 1.0) == 0  # resumed there
    assert pace.hours_ahead(at(51), 1.5) == 0  # 1 of 100
    assert pace.hours_ahead(at(60), 1.5) == pytest.approx(0.05 * 40)
    assert pace.hours_ahead(at(60, 200), 1.6) == 0  # another part
    assert pace.hours_ahead(at(70, 200), 1.6 + 50 / 3600) == 0  # 50 s
    assert pace.hours_ahead(at(70, 200), 1.7) == pytest.approx(0.01 * 130)
    assert pace.hours_ahead(at(5, 200), 1.8) == 0  # from an earlier checkpoint


def test_only_what_was_done_since_the_run_began_counts(store):
    for name, last in (("a1", 4600), ("a2", 8600), ("a3", 12600)):
        attempt = store.attempt("sft", "k" * 64, name)
        attempt.directory.mkdir(parents=True)
        attempt.heartbeat.write_text(json.dumps({"seconds": 3600, "time": last}))
    store.attempt("sft", "k" * 64, "a4").directory.mkdir()  # it waits for the cluster
    attempts = store.attempts("sft", "k" * 64)
    assert len(attempts) == 4
    assert hours_of(attempts, since=0) == 3
    assert hours_of(attempts, since=6800) == 1.5


def test_limits_of_the_run_count_all_its_steps_and_those_of_a_step_only_itself(store):
    cost = {"seconds": 60.0, "gpu_seconds": 120.0}
    before = [finish(store, step, "sft", cost=cost) for step in ("sft", "rejection_sft")]
    for ref in before:
        beat = store.attempt("sft", ref.key, "a1").heartbeat
        beat.write_text(json.dumps({"seconds": 3600, "time": 3700}))
    budget = BudgetConfig.model_validate(
        {"hours": 5, "gpu_hours": 20, "steps": {"reward_model": {"gpu_hours": 8}}}
    )
    config = RewardModelConfig.model_validate(
        {"data": {"name": "cafe"}, "resources": {"num_gpus": 2, "num_workers": 4}}
    )
    found = allowances_for("reward_model", config, budget, store=store, before=before, since=0)
    assert found == (
        Allowance("budget.hours", 5, 2.0, "hours", 1),
        Allowance("budget.gpu_hours", 20, 4.0, "GPU-hours", 8),
        Allowance("budget.steps.reward_model.gpu_hours", 8, 0.0, "GPU-hours", 8),
    )
    assert allowances_for("x", config, BudgetConfig(), store=store, before=before, since=0) == ()


def test_a_budget_of_an_unknown_step_names_the_nearest():
    config = load_config("tiny", {"budget": {"steps": {"dpo": {"hours": 1}}}})
    with pytest.raises(ConfigError, match=r"budget\.steps\.dpo: .* did you mean 'dpo_1'\?"):
        outline_of(lambda steps: steps.run("dpo_1", config.sft or SftConfig()), config)
