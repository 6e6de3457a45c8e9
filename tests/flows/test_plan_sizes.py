"""What `ratchet plan` prints about memory and FLOPs; nothing here needs a service."""

from __future__ import annotations

import json

import pytest

from flows import full_rlhf, raft
from flows.cli.plan import show_plan
from flows.cli.plan_sizes import SizedSteps, show_sizes
from flows.cli.terminal import Terminal
from flows.config.presets import deep_merge, load_config
from flows.local_services.environment import ADDRESS_VARIABLES
from tests.training_core.sizes.published_shapes import LLAMA_3_8B
from training_core.sizes.decoder_config import decoder_of


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Addresses where nobody answers."""
    monkeypatch.setenv("RATCHET_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setattr("flows.cli.plan.champion_of", lambda *_: (0, None))


@pytest.fixture
def llama(tmp_path):
    """The preset of Llama 3 8B with its config.json in a folder, instead of the hub."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_8B))
    return load_config("llama3-8b", {"sft": {"base": {"name": "local", "path": str(tmp_path)}}})


def printed(config, capsys, steps=full_rlhf.steps):
    fits = show_sizes(Terminal(width=200), config, steps)
    return fits, capsys.readouterr().out


def row(text, *starts):
    """The cells of the first row with these first cells."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("│┃").split("│")]
        if cells[: len(starts)] == list(starts):
            return cells
    raise AssertionError(f"no row {starts} in\n{text}")


@pytest.mark.usefixtures("places")
def test_a_plan_prints_the_sizes_of_its_steps_and_what_they_leave_out(capsys):
    assert show_plan("tiny", "full-rlhf", {}) is True
    told = capsys.readouterr().out
    assert "memory per GPU in GiB" in told
    assert "FLOPs" in told
    assert "Without embeddings: a scratch model's vocabulary comes from its data." in told


def test_before_the_services_are_started_a_plan_has_the_sizes(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path))
    for variable in ("RATCHET_STORE", *ADDRESS_VARIABLES.values()):
        monkeypatch.delenv(variable, raising=False)
    assert show_plan("tiny", "full-rlhf", {}) is True
    told = capsys.readouterr().out
    assert "no services were started here (`ratchet up`)" in told
    assert "memory per GPU in GiB" in told


def test_a_step_that_does_not_fit_is_named_with_its_largest_part_and_a_remedy(llama, capsys):
    small = {"num_gpus": 1, "num_workers": 1, "gpu_memory_gib": 24.0}
    plain = {"training": {"engine": {"name": "torch"}}, "resources": small}
    fits, told = printed(with_sft(llama, plain), capsys)
    assert fits is False
    (line,) = [line for line in told.splitlines() if line.startswith("sft: expected")]
    assert "at most 21.6 GiB per GPU" in line  # nine tenths of 24
    assert "zero_stage: 1} with several workers" in line
    # in the optimizer step: masters, moments and temporary tensors, (4 + 8 + 4) * 8.03e9 / 2^30
    assert "(optimizer step)" in line
    assert "the largest part: optimizer of the policy, 119.7 GiB" in line


def with_sft(config, changes):
    """A lifecycle whose SFT is changed, as a preset's override changes it."""
    sft = deep_merge(config.sft.model_dump(mode="json"), changes)
    return config.model_copy(update={"sft": type(config.sft).model_validate(sft)})


def test_offloaded_state_is_told_apart_from_the_memory_of_the_gpu(llama, capsys):
    offload = {"training": {"engine": {"offload_optimizer": True}}}
    _, told = printed(with_sft(llama, offload), capsys)
    # masters and moments, and in the step gradients: (12 + 4) * 8.03e9 / 8 / 2^30
    assert "sft: each worker also holds 15.0 GiB of offloaded state in CPU memory" in told
    steps = [line.partition(":")[0] for line in told.splitlines() if "offloaded state" in line]
    # the others keep frozen models there, and PPO its optimizer, too
    assert steps == ["sft", "rejection_sampling", "preference_pairs_1", "ppo", "evaluation"]


def test_the_tables_have_every_role_and_the_known_numbers(llama, capsys):
    _, told = printed(llama, capsys)
    assert row(told, "", "", "reference")[3] == "15.0"  # at work, 2 * 8.03e9 / 2^30
    assert row(told, "ppo", "8")[2] == "policy"
    assert row(told, "", "", "together")
    tokens = row(told, "sft", "optimizer step", "262,144")  # 128 * 2048
    assert tokens[3] == "782"  # 100,000 / 128
    # the size of the reward model's data is not known
    assert row(told, "reward_model", "optimizer step", "524,288")[3] == "?"
    assert row(told, "dpo_1", "optimizer step", "524,288")[3] == "80"  # 10,240 pairs / 128


def test_names_of_steps_are_not_cut_on_a_narrow_terminal(llama, capsys):
    show_sizes(Terminal(width=80), llama, full_rlhf.steps)
    told = capsys.readouterr().out
    assert "…" not in "".join(line.split("│")[1] for line in told.splitlines() if "│" in line)


def test_rows_pass_from_the_sampling_to_the_training_of_each_round(capsys):
    config = load_config("tiny", {"raft": {"rounds": 2}})
    walk = SizedSteps(config, decoder_of(LLAMA_3_8B, "it"))
    raft.steps(walk)
    steps = {step: size.work.steps for step, (_, size) in walk.sizes.items()}
    # 512 prompts, the best response of each, 64 per step
    assert steps["rejection_sft_1"] == steps["rejection_sft_2"] == 8
    assert steps["sft"] == 375  # 4000 * 6 / 64


def test_history_adds_up_in_the_rounds_of_dpo():
    config = load_config("tiny", {"iterative_dpo": {"rounds": 2, "keeps_history": True}})
    walk = SizedSteps(config, decoder_of(LLAMA_3_8B, "it"))
    full_rlhf.steps(walk)
    assert walk.sizes["dpo_1"][1].work.steps == 16  # 512 * 2 / 64
    assert walk.sizes["dpo_2"][1].work.steps == 32


def test_without_the_models_shapes_the_plan_says_so_in_one_line_and_goes_on(capsys):
    # the tests run with HF_HUB_OFFLINE
    assert show_plan("llama3-8b", "full-rlhf", {}) is False
    told = capsys.readouterr().out.splitlines()
    (line,) = [line for line in told if line.startswith("no estimate of memory and FLOPs")]
    assert "the config.json of meta-llama/Meta-Llama-3-8B is neither in the cache" in line
    assert "memory per GPU" not in "".join(told)
