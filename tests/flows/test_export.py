"""`ratchet export`: directories that transformers loads by itself, and nothing else in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)
from typer.testing import CliRunner, Result

from flows.cli.main import app
from training_core.models import hub

IDS = torch.tensor([[1, 4, 35, 34, 9, 22, 7, 9, 28, 8, 5]])
FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
}


@pytest.fixture
def policy(tmp_path, make_policy, tokenizer) -> Path:
    """The artifact of a stage, with things beside the model."""
    folder = tmp_path / "policy"
    hub.save(make_policy(seed=1), tokenizer, folder)
    (folder / "critic").mkdir()
    (folder / "critic/model.safetensors").write_bytes(b"")
    (folder / "summary.json").write_text("{}")
    return folder


def run(model: Path, out: Path, *more: str) -> Result:
    return CliRunner().invoke(app, ["export", str(model), str(out), *more])


def test_a_policy_is_loaded_by_transformers_with_its_tokenizer_and_template(policy, tmp_path):
    out = tmp_path / "new/out"
    done = run(policy, out)
    assert done.exit_code == 0, done.output
    assert {path.name for path in out.iterdir()} == FILES
    assert all(name in done.stdout for name in FILES)
    loaded, mine = AutoModelForCausalLM.from_pretrained(out), hub.load_policy(policy)
    assert torch.equal(loaded(IDS).logits, mine(IDS).logits)
    tokenizer = AutoTokenizer.from_pretrained(out)
    asked = [{"role": "user", "content": "two tea please"}]
    assert tokenizer.apply_chat_template(asked, add_generation_prompt=True)["input_ids"][-1] == 5
    texts = [path.read_text() for path in out.iterdir() if path.suffix != ".safetensors"]
    assert not any(str(tmp_path) in text for text in texts)
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_the_dtype_and_the_size_of_the_shards_can_be_chosen(policy, tmp_path):
    out = tmp_path / "out"
    done = run(policy, out, "--dtype", "bfloat16", "--max-shard-size", "10KB")
    assert done.exit_code == 0, done.output
    index = json.loads((out / "model.safetensors.index.json").read_text())
    shards = set(index["weight_map"].values())
    assert len(shards) > 1
    assert {path.name for path in out.glob("*.safetensors")} == shards
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"
    loaded = AutoModelForCausalLM.from_pretrained(out)
    expected = hub.load_policy(policy, dtype=torch.bfloat16)
    assert loaded.dtype == torch.bfloat16
    assert torch.equal(loaded(IDS).logits, expected(IDS).logits)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_reward_model_keeps_its_head_and_its_scale(tmp_path, make_scalar_model, tokenizer, dtype):
    model = make_scalar_model()
    model.config.reward_mean = 0.5
    hub.save(model, tokenizer, tmp_path / "rm")
    assert run(tmp_path / "rm", tmp_path / "out", "--dtype", dtype).exit_code == 0
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert loaded.config.reward_mean == 0.5
    close = 0.05 if dtype == "bfloat16" else 1e-5  # bfloat16 has about three digits
    assert loaded(IDS).logits.item() == pytest.approx(model(IDS).logits.item(), rel=close)


def test_a_process_reward_model_keeps_its_labels(policy, tokenizer, tmp_path):
    model = hub.load_step_model(policy)
    torch.nn.init.normal_(model.score.weight)
    hub.save(model, tokenizer, tmp_path / "prm")
    assert run(tmp_path / "prm", tmp_path / "out").exit_code == 0
    loaded = AutoModelForTokenClassification.from_pretrained(tmp_path / "out")
    assert loaded.config.id2label == {0: "wrong", 1: "right"}
    assert torch.equal(loaded(IDS).logits, model(IDS).logits)


def test_an_adapter_is_merged_into_the_base_that_it_names(policy, tmp_path):
    model = hub.load_policy(policy)
    lora = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    wrapped = get_peft_model(model, lora)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    expected = wrapped(IDS).logits
    wrapped.peft_config["default"].base_model_name_or_path = str(policy)
    wrapped.save_pretrained(tmp_path / "adapter")
    done = run(tmp_path / "adapter", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.allclose(loaded(IDS).logits, expected, atol=1e-5)
    assert (expected - hub.load_policy(policy)(IDS).logits).abs().max() > 0.1

    config = tmp_path / "adapter/adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "base_model_name_or_path": ""}))
    refused = run(tmp_path / "adapter", tmp_path / "other")
    assert refused.exit_code == 1
    assert "does not name its base model" in refused.stderr
    assert not (tmp_path / "other").exists()


def test_only_a_new_or_empty_directory_is_written(policy, tmp_path):
    (tmp_path / "out").mkdir()
    assert run(policy, tmp_path / "out").exit_code == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    refused = run(policy, tmp_path / "out")
    assert refused.exit_code == 1
    assert f"{tmp_path / 'out'} is not empty; give a new directory" in refused.stderr
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before


def test_a_size_that_is_none_is_refused(policy, tmp_path):
    refused = run(policy, tmp_path / "out", "--max-shard-size", "5 gigabytes")
    assert refused.exit_code == 2
    assert "expected a size as 500MB or 5GB" in refused.stderr.replace("\n", " ")
