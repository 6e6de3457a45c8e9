"""`ratchet preflight`: the miniature of a preset, and a rehearsal of the largest one."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from flows.config.presets import load_config, preset_names
from flows.preflight.miniature import BATCH, ROWS, miniature
from flows.preflight.stand_in_rows import KINDS, stand_in_rows
from flows.preflight.stand_ins import StandIns
from stages.configs.block import StageConfig
from stages.configs.data_config import CafeDataConfig, FileDataConfig, HubDataConfig
from stages.configs.model_config import HubModelConfig, LocalModelConfig, ScratchModelConfig
from stages.configs.sampling_config import RolloutConfig
from stages.configs.tree import blocks_at
from stages.datasets import read
from stages.files import write_jsonl
from training_core.errors import ConfigError
from training_core.models import hub

CAFE = {"name": "cafe", "split": "heldout", "size": 500}


@pytest.mark.parametrize("preset", preset_names())
def test_a_miniature_is_valid_small_and_needs_no_gpu_and_no_network(preset, tmp_path):
    small = miniature(load_config(preset), StandIns(tmp_path))
    for place, block in blocks_at(small):
        assert not isinstance(block, HubDataConfig | HubModelConfig), place
        if isinstance(block, CafeDataConfig):
            assert block.size <= ROWS, place
        if isinstance(block, StageConfig):
            assert block.resources.num_gpus == 0, place
            a_row_for_each = max(BATCH, block.resources.num_workers)
            training = getattr(block, "training", None)
            assert training is None or training.batch_size <= a_row_for_each, place


def test_what_decides_which_code_runs_stays(tmp_path):
    engine = {"name": "deepspeed", "zero_stage": 3}
    overrides = {
        "dpo": {
            "loss": {"name": "ipo"},
            "model": {"dtype": "bfloat16"},
            "training": {"engine": engine, "optimizer": {"learning_rate": 1.0e-6}},
            "resources": {"num_workers": 4, "num_gpus": 1},
        }
    }
    config = load_config("llama3-8b", overrides)
    small = miniature(config, StandIns(tmp_path))
    assert small.dpo.loss == config.dpo.loss
    assert small.dpo.model.dtype == "bfloat16"
    assert small.dpo.training.engine == config.dpo.training.engine
    assert small.dpo.training.optimizer == config.dpo.training.optimizer
    assert small.dpo.resources.num_workers == 4
    assert small.dpo.resources.num_gpus == 0
    engines = {b.engine for _, b in blocks_at(config) if isinstance(b, RolloutConfig)}
    assert {b.engine for _, b in blocks_at(small) if isinstance(b, RolloutConfig)} == engines


def test_a_batch_has_an_example_for_each_of_many_workers(tmp_path):
    many = {"resources": {"num_workers": 16, "num_gpus": 1}}
    config = load_config("llama3-8b", {"sft": many, "ppo": many})
    small = miniature(config, StandIns(tmp_path))
    assert small.sft.training.batch_size == small.ppo.prompts_per_step == 16
    assert small.dpo.training.batch_size == BATCH


def test_workers_are_limited_and_one_engine_is_enough(tmp_path):
    small = miniature(load_config("llama3-8b"), StandIns(tmp_path), max_workers=2)
    assert small.ppo.resources.num_workers == 2
    assert small.evaluation.rollouts.placement.engines == 1


def test_held_out_prompts_of_ppo_are_few_and_asked_after_every_round(tmp_path):
    hub_prompts = {"name": "hub", "repo": "someone/something", "revision": "a" * 40}
    evaluation = {
        "every": 10,
        "prompts": [{"label": "a", "data": hub_prompts}, {"label": "b", "data": CAFE}],
        "exclude": CAFE,
        "samples_per_prompt": 16,
        "pass_at": [1, 4],
    }
    config = load_config("tiny", {"ppo": {"evaluation": evaluation}})
    small = miniature(config, StandIns(tmp_path)).ppo.evaluation
    assert (small.every, small.samples_per_prompt, small.pass_at) == (1, 4, (1, 4))
    assert [prompts.label for prompts in small.prompts] == ["a", "b"]
    assert isinstance(small.prompts[0].data, FileDataConfig)
    assert small.prompts[1].data.size == small.exclude.size == ROWS


@pytest.mark.parametrize("kind", KINDS)
def test_stand_in_rows_are_read_as_what_they_stand_for(kind, tmp_path):
    source = HubDataConfig(repo="someone/something")
    write_jsonl(tmp_path / "rows.jsonl", stand_in_rows(source, kind, size=5, seed=1))
    rows = read(KINDS[kind], FileDataConfig(path=str(tmp_path / "rows.jsonl"))).rows
    assert len({str(row) for row in rows}) >= 5


def test_stand_in_rows_have_the_columns_of_the_dataset(tmp_path):
    columns = {"instruction": "ask", "output": "say", "system": "be"}
    source = HubDataConfig(repo="someone/something", columns=columns)
    (row,) = stand_in_rows(source, "demonstrations", size=1, seed=1)
    assert set(row) == {"ask", "say", "be"}
    small = StandIns(tmp_path).rows(source, "demonstrations")
    assert isinstance(small, FileDataConfig)
    (first, *_) = read(KINDS["demonstrations"], small).rows
    assert first.prompt[0] == {"role": "system", "content": row["be"]}


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("demonstrations", {"prompt": "{Body} {Question}", "response": "Answer"}),
        ("demonstrations", {"tree": "talk"}),
        ("preferences", {"first": "output_1", "second": "output_2", "winner": "label"}),
        ("preferences", {"first": "a", "second": "b", "first_wins": "won", "second_wins": "lost"}),
        ("solutions", {"problem": "asked", "first_error_number": "label"}),
        ("prompts", {"prompt": "{Body} {Question}", "answer": "Answer"}),
    ],
)
def test_stand_in_rows_fit_every_form_that_columns_describe(kind, columns, tmp_path):
    source = HubDataConfig(repo="someone/something", columns=columns)
    small = StandIns(tmp_path).rows(source, kind)
    assert isinstance(small, FileDataConfig)
    found = read(KINDS[kind], small)
    assert (len(found.rows), found.bad) == (ROWS, [])


def test_a_mapping_of_roles_that_no_such_row_has_is_refused():
    source = HubDataConfig(repo="someone/something", columns={"chosen": "best"})
    with pytest.raises(ConfigError, match=r"expected roles of prompts, found chosen"):
        stand_in_rows(source, "prompts", size=1, seed=1)


def test_files_that_are_there_are_read_shortened(tmp_path):
    path = tmp_path / "mine.jsonl"
    write_jsonl(path, [{"prompt": f"question {i}"} for i in range(3)])
    source = FileDataConfig(path=str(path), sample=2)
    assert StandIns(tmp_path).rows(source, "prompts") == FileDataConfig(path=str(path), limit=ROWS)


def test_a_model_at_hand_gets_a_tiny_twin_with_its_tokenizer(tmp_path, make_policy, tokenizer):
    hub.save(make_policy(), tokenizer, tmp_path / "mine")
    folder = tmp_path / "stand-ins"
    folder.mkdir()
    stand_ins = StandIns(folder)
    twin = stand_ins.base_model(LocalModelConfig(path=str(tmp_path / "mine")))
    assert isinstance(twin, LocalModelConfig)
    assert hub.load_config(twin.path).model_type == "llama"
    assert hub.load_tokenizer(twin.path).get_vocab() == tokenizer.get_vocab()
    assert hub.load_policy(twin.path).num_parameters() < 300_000
    assert "a random llama" in stand_ins.notes[str(tmp_path / "mine")]
    missing = HubModelConfig(repo="someone/nothing")
    assert isinstance(stand_ins.base_model(missing), ScratchModelConfig)
    assert "word tokenizer" in stand_ins.notes["someone/nothing"]


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "with_vllm"), [("llama3-8b", "ppo"), ("llama3-70b", None)])
def test_the_largest_presets_are_rehearsed_through_every_step_and_the_gate(
    monkeypatch, preset, with_vllm
):
    monkeypatch.setenv("COLUMNS", "200")
    sampling = {"rejection_sampling", "preference_pairs", "ppo", "evaluation"} - {with_vllm}
    rollouts = "{engine: transformers, placement: {name: inline}}"
    quick = [f"{step}.rollouts={rollouts}" for step in sampling]
    result = CliRunner().invoke(app, ["preflight", preset, "--max-workers", "2", *quick])
    assert result.exit_code == 0, result.output
    for step in ("sft", "reward_model", "rejection_sft", "dpo_1", "ppo", "evaluation"):
        assert f" {step} " in result.output
    assert "independent_judge a reward that no step optimised, found yes" in result.output
    assert "Not shown here: memory and speed on GPUs (sft" in result.output


@pytest.mark.slow
def test_a_step_that_fails_is_named_with_its_reason(tmp_path):
    """Its data is only bad for the stage that reads it."""
    path = tmp_path / "pairs.jsonl"
    write_jsonl(path, [{"prompt": "tea?", "chosen": "tea", "rejected": "tea"}])
    source = f"{{name: files, path: {path}}}"
    arguments = ["preflight", "tiny", f"reward_model.data={source}"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "step 'reward_model' failed: DataError" in result.output
    assert "1 of 1 pairs have the same tokens" in result.output


def test_an_unknown_flow_is_refused():
    result = CliRunner().invoke(app, ["preflight", "tiny", "--flow", "nonsense"])
    assert result.exit_code == 1
    assert "expected a flow of full-rlhf, iterative-dpo, raft" in result.output
