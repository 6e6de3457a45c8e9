"""What a flow run checks before it does anything; none of this needs a service."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows import full_rlhf, iterative_dpo, raft
from flows.cli.plan import Plan, show_plan
from flows.config.lifecycle_config import Overrides
from flows.config.presets import load_config
from flows.recipe.opening import MAX_RUNS, open_recipe
from flows.recipe.outline import Outline, block_names, require_steps, step_names
from stages.runtime.store import Manifest
from tasks.connections import connect
from tasks.locks import claim
from training_core.errors import ConfigError, RatchetError


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses where nobody answers: whatever is asked there fails the test."""
    monkeypatch.setenv("RATCHET_STORE", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")


# -------------------------------------------------------------------------------- steps


def test_the_steps_of_the_flows_are_those_that_they_do():
    config = load_config("tiny", {"iterative_dpo": {"rounds": 2, "start": "champion"}})
    rounds = ["preference_pairs_1", "dpo_1", "preference_pairs_2", "dpo_2"]
    assert step_names(full_rlhf.steps, config) == [
        "sft", "reward_model", "rejection_sampling", "rejection_sft", *rounds, "ppo",
        "evaluation", "champion_match",
    ]  # fmt: skip
    assert step_names(iterative_dpo.steps, config) == [
        "sft", "reward_model", *rounds, "evaluation", "champion_match",
    ]  # fmt: skip
    assert step_names(raft.steps, load_config("tiny", {"raft": {"rounds": 2}})) == [
        "sft", "reward_model", "rejection_sampling_1", "rejection_sft_1", "rejection_sampling_2",
        "rejection_sft_2", "evaluation", "champion_match",
    ]  # fmt: skip
    assert "feedback" in step_names(full_rlhf.steps, load_config("tinystories"))


class Reads(Outline):
    """Notes from which steps each step reads."""

    def __init__(self, config):
        super().__init__(config)
        self.of = {}

    def run(self, step, config, **inputs):
        self.of[step] = {role: ref.step for role, ref in inputs.items() if ref is not None}
        return super().run(step, config, **inputs)


@pytest.mark.parametrize(
    ("reference", "expected"),
    [("sft", ["sft", "sft"]), ("previous", ["rejection_sft", "dpo_1"])],
)
def test_the_reference_of_a_round_stays_the_sft_policy_or_follows(reference, expected):
    rounds = {"rounds": 2, "reference": reference}
    reads = Reads(load_config("tiny", {"iterative_dpo": rounds}))
    full_rlhf.steps(reads)
    assert [reads.of[step]["reference"] for step in ("dpo_1", "dpo_2")] == expected
    assert [reads.of[step]["policy"] for step in ("dpo_1", "dpo_2")] == ["rejection_sft", "dpo_1"]


def test_the_flow_stage_knows_every_block_that_is_a_stage():
    assert block_names() == [
        "sft", "feedback", "reward_model", "rejection_sampling", "rejection_sft",
        "preference_pairs", "dpo", "ppo", "evaluation", "distillation", "kto", "process_reward",
    ]  # fmt: skip
    require_steps(["dpo", "preference_pairs"], block_names())
    with pytest.raises(ConfigError, match="unknown step 'pop'; did you mean 'ppo'"):
        require_steps(["pop"], block_names())
    with pytest.raises(ConfigError, match="unknown step 'xyz'; there are: sft, feedback"):
        require_steps(["xyz"], block_names())


@pytest.mark.usefixtures("places")
def test_force_of_a_step_that_the_flow_does_not_have_names_the_nearest():
    steps = iterative_dpo.steps
    with pytest.raises(ConfigError, match=r"unknown step 'dpo'; did you mean 'dpo_1'\?"):
        open_recipe("iterative-dpo", "tiny", None, ["dpo"], steps)
    with pytest.raises(ConfigError, match=r"unknown step 'ppo'; .*there are: sft, reward_model"):
        open_recipe("iterative-dpo", "tiny", None, ["sft", "ppo"], steps)


# ---------------------------------------------------------------------------- overrides


@pytest.mark.usefixtures("places")
def test_a_misspelled_override_ends_the_run_at_once_with_the_nearest_key():
    form = Overrides.model_validate({"ppo": {"kl_coeff": 0.1}})
    with pytest.raises(ConfigError, match=r"ppo\.kl_coeff: unknown key; did you mean 'kl_coef'"):
        open_recipe("full-rlhf", "tiny", form)


def test_a_run_that_was_started_too_often_is_given_up(monkeypatch):
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__RUN_COUNT", str(MAX_RUNS + 1))
    with pytest.raises(RatchetError, match=r"was started 21 times .* continues where this one"):
        open_recipe("full-rlhf", "tiny", None)


# --------------------------------------------------------------------------------- plan


@pytest.mark.usefixtures("places")
def test_a_plan_compares_only_with_what_this_lifecycle_has_made():
    config, connections = load_config("tiny"), connect()
    other = config.sft.model_copy(update={"seed": 7})
    made = Manifest(
        stage="sft", step="sft", version=1, key="k" * 64, kind="policy", attempt="a1",
        config=other.model_dump(mode="json"), input_digests={}, parents={}, files=(), digest="",
        metrics={}, environment={}, cost={}, finished_at=0.0,
    )  # fmt: skip
    store = connections.store
    store.stage_dir(made.stage, made.key).mkdir(parents=True)
    store.publish(made)

    def reason_of_sft() -> str:
        plan = Plan(config, connections, None)
        full_rlhf.steps(plan)
        return plan.steps[0].reason

    with claim(store.root, "another", made.stage, made.key, step="sft"):
        assert reason_of_sft() == "never done"
    with claim(store.root, "tiny", made.stage, made.key, step="sft"):
        assert reason_of_sft() == "changed: seed 7 → 0"


def test_a_plan_shows_that_the_hub_does_not_answer(capsys):
    # the tests run with HF_HUB_OFFLINE, so no revision can be pinned
    assert show_plan("llama3-8b", "full-rlhf", {}) is False
    assert "the hub did not tell the commit of" in capsys.readouterr().out
