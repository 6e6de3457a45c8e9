"""`ratchet merge`: an adapter that PEFT wrote, into its base."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from typer.testing import CliRunner

from flows.cli.main import app
from tests.tolerances import assert_same_through
from training_core.errors import ConfigError, DataError
from training_core.models import hub
from training_core.models.merging import merge

IDS = torch.tensor([[5, 9, 7, 30, 12, 6, 2]])


def peft_adapter(model, directory, *, task, keep_head=True):
    """What another trainer leaves behind."""
    config = LoraConfig(
        r=2,
        target_modules="all-linear",
        task_type=task,
        modules_to_save=["score"] if task == "SEQ_CLS" and keep_head else None,
    )
    wrapped = get_peft_model(model, config)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in wrapped.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    wrapped.save_pretrained(directory)
    return wrapped.eval()


@pytest.fixture
def base(tiny, tokenizer, tmp_path):
    hub.save(tiny("qwen2").double(), tokenizer, tmp_path / "base")
    return tmp_path / "base"


def test_the_command_writes_a_full_policy(tiny, base, tokenizer, tmp_path):
    wrapped = peft_adapter(tiny("qwen2").double(), tmp_path / "adapter", task="CAUSAL_LM")
    arguments = [str(base), str(tmp_path / "adapter"), str(tmp_path / "out")]
    result = CliRunner().invoke(app, ["merge", *arguments])
    assert result.exit_code == 0, result.output
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float64)
    assert_same_through(merged, merged(IDS).logits, wrapped(IDS).logits)
    assert (merged(IDS).logits - tiny("qwen2")(IDS).logits).abs().max() > 0.1
    assert hub.load_tokenizer(tmp_path / "out").get_vocab() == tokenizer.get_vocab()


def test_a_merged_reward_model_gives_the_scores_of_the_adapter(tiny, base, tmp_path):
    classifier = hub.load_scalar_model(base, dtype=torch.float64)
    wrapped = peft_adapter(classifier, tmp_path / "adapter", task="SEQ_CLS")
    score = wrapped(IDS).logits.detach()
    assert float(score.abs()) > 1e-3
    merge(base, tmp_path / "adapter", tmp_path / "out", is_reward_model=True)
    merged = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "out", dtype=torch.float64
    )
    assert merged.config.num_labels == 1
    assert_same_through(merged, merged(IDS).logits, score)


def test_the_weights_keep_the_dtype_of_the_base(tiny, tokenizer, tmp_path):
    hub.save(tiny("qwen2").bfloat16(), tokenizer, tmp_path / "base")
    peft_adapter(tiny("qwen2"), tmp_path / "adapter", task="CAUSAL_LM")
    merge(tmp_path / "base", tmp_path / "adapter", tmp_path / "out")
    assert hub.recorded_dtype(tmp_path / "out") == torch.bfloat16


def test_a_reward_models_head_is_never_lost_or_made_up(tiny, base, tmp_path):
    adapter = tmp_path / "adapter"
    peft_adapter(hub.load_scalar_model(base), adapter, task="SEQ_CLS")
    with pytest.raises(DataError, match="add --reward-model"):
        merge(base, adapter, tmp_path / "out")
    peft_adapter(tiny("qwen2"), tmp_path / "headless", task="CAUSAL_LM")
    with pytest.raises(DataError, match=r"neither .* has a trained head"):
        merge(base, tmp_path / "headless", tmp_path / "out", is_reward_model=True)
    assert not (tmp_path / "out").exists()


def test_what_is_not_an_adapter_is_named(base, tmp_path):
    with pytest.raises(DataError, match=r"is not an adapter: .*adapter_config\.json"):
        merge(base, base, tmp_path / "out")


@pytest.mark.parametrize("other", [{"num_hidden_layers": 3}, {"intermediate_size": 32}])
def test_another_models_adapter_is_refused(tiny, base, tmp_path, other):
    peft_adapter(tiny("qwen2", **other), tmp_path / "adapter", task="CAUSAL_LM")
    with pytest.raises(DataError, match="does not fit"):
        merge(base, tmp_path / "adapter", tmp_path / "out")


def test_an_adapter_of_another_architecture_is_refused(tiny, base, tmp_path):
    peft_adapter(tiny("gpt2"), tmp_path / "adapter", task="CAUSAL_LM")
    with pytest.raises(DataError, match="does not fit"):
        merge(base, tmp_path / "adapter", tmp_path / "out")


def test_an_existing_output_is_left_alone(tiny, base, tmp_path):
    peft_adapter(tiny("qwen2"), tmp_path / "adapter", task="CAUSAL_LM")
    with pytest.raises(ConfigError, match="exists already"):
        merge(base, tmp_path / "adapter", base)
