"""Taking models apart: body, output layer, scalar head."""

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model

from tests.tolerances import assert_same_through, in_widest_dtype, rounding
from training_core import checkpoint
from training_core.data.batching import collate
from training_core.errors import ConfigError, DataError
from training_core.models import hub
from training_core.models.causal_lm import logprobs
from training_core.models.parts import (
    TrainedPart,
    backbone,
    head_outputs,
    output_head,
    require_known_head,
    scalar_head,
)
from training_core.models.scalar_head import sequence_scores
from training_core.types import Example

PAD = 0
EXAMPLES = [
    Example((5, 9, 7, 30, 12, 6, 2), (0, 0, 0, 1, 1, 1, 1)),
    Example((8, 11, 40, 2), (0, 0, 1, 1)),
]
ALL = ["llama-tied", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2", "mixtral", "granite", "cohere"]
SCORED = ["llama-tied", "qwen3", "gemma2", "gemma3", "gpt2", "mixtral"]


@pytest.mark.parametrize("architecture", ALL)
def test_log_probabilities_are_those_of_the_models_own_logits(tiny, architecture):
    model = in_widest_dtype(tiny(architecture))
    with torch.no_grad():
        found = logprobs(model, collate(EXAMPLES, PAD))
        for row, example in enumerate(EXAMPLES):
            ids = torch.tensor([example.input_ids])
            own = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
            mask = torch.tensor(example.loss_mask[1:]).bool()
            size = len(example)
            assert_same_through(model, found[row, 1:size][mask], own[mask])
    require_known_head(model)


def test_a_model_that_scales_its_logits_in_an_unknown_way_is_refused(tiny):
    model = tiny("llama-tied")

    def double(_, __, output):
        output.logits = output.logits * 2
        return output

    model.register_forward_hook(double)
    with pytest.raises(ConfigError, match="LlamaForCausalLM changes its logits"):
        require_known_head(model)


def test_a_model_wrapped_by_peft_is_taken_apart_like_a_plain_one(tiny):
    wrapped = get_peft_model(tiny("qwen2"), LoraConfig(target_modules=["q_proj"]))
    assert type(backbone(wrapped)).__name__ == "Qwen2Model"
    assert output_head(wrapped).weight is wrapped.get_base_model().lm_head.weight


def test_an_output_layer_with_an_adapter_is_refused(tiny):
    wrapped = get_peft_model(tiny("qwen2"), LoraConfig(target_modules=["lm_head"]))
    with pytest.raises(ConfigError, match="output layer of Qwen2ForCausalLM has an adapter"):
        output_head(wrapped)


@pytest.mark.parametrize("architecture", SCORED)
def test_a_score_is_the_models_own_on_either_side_of_the_padding(tiny, architecture):
    model = in_widest_dtype(tiny(architecture, head="SequenceClassification"))
    with torch.no_grad():
        found = sequence_scores(model, collate(EXAMPLES, PAD))
        width = max(len(e) for e in EXAMPLES)
        for is_left in (True, False):
            rows, masks = [], []
            for example in EXAMPLES:
                fill, ids = [PAD] * (width - len(example)), list(example.input_ids)
                rows.append(fill + ids if is_left else ids + fill)
                ones, zeros = [1] * len(example), [0] * len(fill)
                masks.append(zeros + ones if is_left else ones + zeros)
            mask = torch.tensor(masks)
            own = model(
                input_ids=torch.tensor(rows),
                attention_mask=mask,
                position_ids=(mask.cumsum(1) - 1).clamp(min=0),
            ).logits[:, 0]
            assert_same_through(model, found, own)
    assert float((found[0] - found[1]).abs()) > 1e-3


def test_a_classifier_of_two_labels_is_no_reward_model(tiny):
    config = tiny("llama-tied").config
    config.num_labels = 2
    model = transformers.LlamaForSequenceClassification(config)
    with pytest.raises(ConfigError, match=r"`score` .* 1 output, found .*out_features=2"):
        scalar_head(model)


def test_an_encoder_with_a_pooler_is_no_reward_model():
    config = transformers.BertConfig(
        vocab_size=32,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        num_labels=1,
    )
    model = transformers.BertForSequenceClassification(config)
    with pytest.raises(ConfigError, match=r"BertForSequenceClassification .* a pooler"):
        scalar_head(model)


def test_a_causal_language_model_has_no_scalar_head(tiny):
    with pytest.raises(ConfigError, match=r"found Qwen2ForCausalLM with \['lm_head'\]"):
        scalar_head(tiny("qwen2"))


def test_scores_of_a_bfloat16_model_are_not_rounded_to_bfloat16(tiny, tokenizer, tmp_path):
    hub.save(tiny("llama-tied", head="SequenceClassification"), tokenizer, tmp_path)
    model = hub.load_scalar_model(tmp_path, dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16
    assert scalar_head(model).weight.dtype == torch.float32
    hidden = torch.randn(5, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    scores = head_outputs(scalar_head(model), hidden)
    weight = scalar_head(model).weight[0].double()
    sizes = hidden.double().abs() @ weight.abs()  # of the 16 products, without their signs
    room = rounding(torch.float32, 16, float(sizes.detach().max()))
    torch.testing.assert_close(scores.double(), hidden.double() @ weight, rtol=0, atol=room)
    assert not torch.equal(scores, scores.bfloat16().float())


def test_a_reward_model_is_not_loaded_as_a_policy_with_a_random_output_layer(
    tiny, tokenizer, tmp_path
):
    hub.save(tiny("qwen2", head="SequenceClassification"), tokenizer, tmp_path)
    with pytest.raises(DataError, match=r"lacks 1 of the model's tensors, e\.g\. lm_head\.weight"):
        hub.load_policy(tmp_path)


def test_a_checkpoint_of_the_trained_part_holds_nothing_else_and_loads_into_the_model(
    tiny, tmp_path
):
    model = tiny("llama-tied")
    model.requires_grad_(False)
    model.model.norm.weight.requires_grad_(True)
    saved = checkpoint.save(tmp_path, 1, {"model": TrainedPart(model)}, {}, keep=1)
    assert (saved.directory / "model.safetensors").stat().st_size < 500  # 16 floats and a header
    torch.nn.init.constant_(model.model.norm.weight, 7.0)
    checkpoint.load(saved, {"model": TrainedPart(model)})
    assert model.model.norm.weight.tolist() == [1.0] * 16
