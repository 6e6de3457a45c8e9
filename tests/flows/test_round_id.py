"""Runs of a schedule sample anew, each from seeds of its own."""

from __future__ import annotations

from datetime import UTC, datetime

from prefect.runtime import flow_run

from flows import iterative_dpo
from flows.config.presets import load_config
from flows.recipe.outline import Outline
from flows.recipe.round_id import scheduled_date, with_round
from stages.catalog import stage_of
from stages.runtime.stage_key import stage_key

CONFIG = load_config("tiny", {"iterative_dpo": {"rounds": 2}})


class Keys(Outline):
    """Notes the key of each step, as if no step had inputs."""

    def __init__(self, config):
        super().__init__(config)
        self.of = {}

    def run(self, step, config, **inputs):
        self.of[step] = stage_key(stage_of(config), config, {})
        return super().run(step, config, **inputs)


def keys_of(round_id):
    walked = Keys(with_round(CONFIG, round_id))
    iterative_dpo.steps(walked)
    return walked.of


def test_a_run_without_a_round_keeps_its_keys():
    assert with_round(CONFIG, None) == CONFIG


def test_only_the_pairs_are_sampled_anew_and_the_same_round_has_the_same_keys():
    plain, first, second = keys_of(None), keys_of("2026-11-21"), keys_of("2026-11-28")
    changed = {step for step, key in plain.items() if first[step] != key}
    assert changed == {"preference_pairs_1", "preference_pairs_2"}
    pairs = [keys[step] for keys in (plain, first, second) for step in sorted(changed)]
    assert len(set(pairs)) == 6
    assert keys_of("2026-11-21") == first


def test_the_seeds_of_rounds_stay_in_the_range_of_a_generator():
    seeds = [with_round(CONFIG, str(day)).preference_pairs.seed for day in range(100)]
    assert len(set(seeds)) == 100
    assert max(seeds) * 1_000_003 * 8 < 2**63  # `sample_groups` multiplies them


def test_the_round_of_a_schedule_is_its_date_and_other_runs_have_none(monkeypatch):
    assert scheduled_date() is None
    start = datetime(2026, 11, 21, 22, 0, tzinfo=UTC)
    monkeypatch.setattr(flow_run, "scheduled_start_time", start, raising=False)
    monkeypatch.setattr(flow_run, "tags", ["gpu"], raising=False)
    assert scheduled_date() is None
    monkeypatch.setattr(flow_run, "tags", ["auto-scheduled", "gpu"], raising=False)
    assert scheduled_date() == "2026-11-21"
