"""What a flow run checks before it does anything; none of this needs a service."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from flows import full_rlhf, iterative_dpo, raft
from flows.cli.plan import Plan, show_plan
from flows.config.presets import load_config
from flows.recipe.opening import MAX_RUNS, _read_plan, open_recipe
from flows.recipe.outline import Outline, block_names, require_steps, step_names
from flows.recipe.run import Recipe
from flows.single_stage import _resolve
from stages.configs.sft_config import SftConfig
from stages.runtime.manifest import Manifest, digest_of_records
from stages.runtime.store import Store
from tasks.connections import connect
from tasks.locks import claim
from tasks.stage_task import StageJob, request_for
from training_core.errors import ConfigError, IntegrityError, RatchetError


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
        "sft", "feedback", "reward_model", "process_reward", "rejection_sampling", "rejection_sft",
        "preference_pairs", "dpo", "kto", "distillation", "ppo", "evaluation",
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
        open_recipe("iterative-dpo", "tiny", {}, ["dpo"], steps)
    with pytest.raises(ConfigError, match=r"unknown step 'ppo'; .*there are: sft, reward_model"):
        open_recipe("iterative-dpo", "tiny", {}, ["sft", "ppo"], steps)


# ---------------------------------------------------------------------------- overrides


@pytest.mark.usefixtures("places")
def test_a_misspelled_override_ends_the_run_at_once_with_the_nearest_key():
    with pytest.raises(ConfigError, match=r"ppo\.kl_coeff: unknown key; did you mean 'kl_coef'"):
        open_recipe("full-rlhf", "tiny", {"ppo": {"kl_coeff": 0.1}})


@pytest.mark.usefixtures("places")
@pytest.mark.parametrize("name", ["sft/../../x", "../x/y", "/etc/passwd", "sft/", "sft", "sft/a.b"])
def test_an_input_of_the_flow_stage_is_looked_up_nowhere_but_in_the_store(name):
    recipe = Recipe("stage", load_config("tiny"), connect(), (), None)
    with pytest.raises(ConfigError, match=r"input 'policy': expected .*<stage>/<stage key>.*found"):
        _resolve(recipe, "policy", name)


@pytest.mark.usefixtures("places")
@pytest.mark.parametrize("content", ["", "[]", '{"config": {}, "champion": null}', '{"config": 3}'])
def test_a_plan_file_that_is_none_is_named(tmp_path, content):
    path = tmp_path / "run.json"
    path.write_text(content)
    with pytest.raises(IntegrityError, match=r"run\.json.*delete it; a Retry then"):
        _read_plan(path)


def test_a_run_that_was_started_too_often_is_given_up(monkeypatch):
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__RUN_COUNT", str(MAX_RUNS + 1))
    with pytest.raises(RatchetError, match=r"was started 21 times, .* continues where this one"):
        open_recipe("full-rlhf", "tiny", {})


# --------------------------------------------------------------------------------- plan


def finished_sft(store: Store, config: SftConfig, key: str = "k" * 64) -> Manifest:
    """A finished stage without files."""
    made = Manifest(
        stage="sft", step="sft", version=1, key=key, kind="policy", attempt="a1",
        config=config.model_dump(mode="json"), input_digests={}, parents={}, files=(),
        digest=digest_of_records(()), metrics={}, environment={}, cost={}, finished_at=0.0,
    )  # fmt: skip
    store.stage_dir(made.stage, made.key).mkdir(parents=True)
    assert store.publish(made)
    return made


@pytest.mark.usefixtures("places")
def test_a_plan_compares_only_with_what_this_lifecycle_has_made():
    config, connections = load_config("tiny"), connect()
    store = connections.store
    made = finished_sft(store, config.sft.model_copy(update={"seed": 7}))

    def reason_of_sft() -> str:
        plan = Plan(config, connections, None)
        full_rlhf.steps(plan)
        return plan.steps[0].reason

    with claim(store.root, "another", made.stage, made.key, step="sft"):
        assert reason_of_sft() == "never done"
    with claim(store.root, "tiny", made.stage, made.key, step="sft"):
        assert reason_of_sft() == "changed: seed 7 → 0"


@pytest.mark.usefixtures("places")
def test_a_plan_of_an_old_lifecycle_reads_only_its_newest_result(monkeypatch):
    config, connections = load_config("tiny"), connect()
    store = connections.store
    for seed in range(1, 31):
        made = finished_sft(store, config.sft.model_copy(update={"seed": seed}), f"{seed:064d}")
        with claim(store.root, "tiny", "sft", made.key, step="sft" if seed < 30 else "other"):
            pass
        os.utime(store.root / "lifecycles/tiny/sft" / made.key, ns=(seed, seed))
    opened, real = [], io.open
    with monkeypatch.context() as patch:
        patch.setattr(
            "io.open", lambda file, *a, **k: opened.append(str(file)) or real(file, *a, **k)
        )
        plan = Plan(config, connections, None)
        full_rlhf.steps(plan)

    assert plan.steps[0].reason == "changed: seed 29 → 0"
    assert [name[-2:] for name in opened if "/lifecycles/" in name] == ["30", "29"]
    assert sum(f"{29:064d}/manifest.json" in name for name in opened) == 1
    assert not any(f"{seed:064d}/manifest.json" in name for name in opened for seed in range(29))


@pytest.mark.usefixtures("places")
def test_a_value_that_looks_like_markup_is_shown_in_a_plan(monkeypatch, capsys):
    monkeypatch.setattr("flows.cli.plan.champion_of", lambda *_: (0, None))
    config, connections = load_config("tiny", {"sft": {"pad_token": "[/b]"}}), connect()
    store = connections.store
    made = finished_sft(store, config.sft)
    with claim(store.root, "tiny", made.stage, made.key, step="sft"):
        assert show_plan("tiny", "full-rlhf", {})
    assert "[/b]" in capsys.readouterr().out


@pytest.mark.usefixtures("places")
def test_a_plan_tells_of_a_damaged_result_and_leaves_the_store_as_it_is(tmp_path):
    config, connections = load_config("tiny"), connect()
    key = request_for(StageJob("sft", config.sft, {}, "tiny"), connections).key
    finished_sft(connections.store, config.sft, key)
    path = connections.store.stage_dir("sft", key) / "manifest.json"
    path.write_text(path.read_text().replace('"metrics": {}', '"metrics": {"loss": 0.1}'))
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}

    plan = Plan(config, connections, None)
    full_rlhf.steps(plan)

    assert not plan.steps[0].is_done
    assert plan.steps[0].reason.startswith(f"its result is damaged: {path}: expected the ")
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    assert connections.store.find("sft", key) is None  # the flow sets it aside
    assert not path.exists()


@pytest.mark.parametrize("repo", ["a--b", "a..b", "mine.git", "a/b/c", "a b", "-a/b", "é", ""])
def test_a_plan_refuses_what_is_no_id_of_the_hub_with_its_key(repo):
    base = {"base": {"name": "hub", "repo": repo}}
    with pytest.raises(ConfigError) as caught:
        show_plan("tiny", "full-rlhf", {"sft": base})
    told = str(caught.value)
    assert "sft.base.hub.repo: expected an id of the Hugging Face hub, e.g. owner/name" in told
    assert f"(found {repo!r}); change it" in told


@pytest.mark.usefixtures("places")
def test_one_broken_manifest_does_not_stop_a_plan(caplog):
    config, connections = load_config("tiny"), connect()
    folder = connections.store.stage_dir("sft", "k" * 64)
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text('{"schema_version": 99}')
    with claim(connections.store.root, "tiny", "sft", "k" * 64, step="sft"):
        pass
    claims = connections.store.root / "lifecycles" / "tiny" / "sft"
    (claims / "a folder").mkdir()
    (claims / ".nfs0001").write_text("sft")
    plan = Plan(config, connections, None)
    full_rlhf.steps(plan)
    assert plan.steps[0].reason == "never done"
    told = [record.getMessage() for record in caplog.records]
    assert [str(folder) in line for line in told].count(True) == 1
    assert told[-1].startswith("1 manifest(s) in ")


def test_a_plan_shows_that_the_hub_does_not_answer(capsys):
    # the tests run with HF_HUB_OFFLINE, so no revision can be pinned
    assert show_plan("llama3-8b", "full-rlhf", {}) is False
    assert "could not be read from the hub" in capsys.readouterr().out


def test_a_plan_without_a_network_ends_with_a_few_lines(capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    assert show_plan("llama3-8b", "full-rlhf", {}) is False
    told = capsys.readouterr().out
    assert "could not be read from the hub ([Errno 111] Connection refused)" in told
    assert "check the name, your HF_TOKEN and the network" in told
    assert len(told.splitlines()) <= 5


def test_a_plan_names_the_parts_of_a_model_that_are_not_there(capsys):
    dpo = {"model": {"frozen": ["model.layer.*"]}}
    assert show_plan("tiny", "full-rlhf", {"dpo": dpo}) is False
    assert "dpo.model: frozen: 'model.layer.*' matches no parameter" in capsys.readouterr().out
