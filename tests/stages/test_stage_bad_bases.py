"""Templates, tokenizers and model folders that do not work are refused before training."""

import copy
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from stages.configs.sft_config import SftConfig
from stages.training.base_model import base_model, base_tokenizer
from training_core.data.template_check import require_template
from training_core.data.templates import CHAT_TEMPLATES, chat_template
from training_core.errors import ConfigError, DataError
from training_core.models import hub

CAFE = {"name": "cafe", "size": 20}


@pytest.fixture(scope="session")
def whole(tmp_path_factory, make_policy, tokenizer):
    """A policy's folder; copy it before you break it."""
    directory = tmp_path_factory.mktemp("whole")
    hub.save(make_policy(), tokenizer, directory)
    return directory


@pytest.fixture
def folder(tmp_path, whole):
    return shutil.copytree(whole, tmp_path / "model")


def start(folder, **settings):
    config = SftConfig.model_validate(
        {
            "base": {"name": "local", "path": str(folder)},
            "data": CAFE,
            "training": {"max_tokens": 96},
            **settings,
        }
    )
    tokenizer = base_tokenizer(config, config.base, config.data)
    return base_model(config, config.base, tokenizer)


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_whole_folder_is_loaded(folder):
    assert start(folder, pad_token="<pad>").config.pad_token_id is not None


# ------------------------------------------- templates


@pytest.mark.parametrize("name", CHAT_TEMPLATES)
def test_every_template_by_name_passes(tokenizer, name):
    own = copy.deepcopy(tokenizer)
    own.chat_template = chat_template(name)
    require_template(own)
    own.chat_template = chat_template("User: {}\nAssistant: ")
    require_template(own)


LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ bos_token }}{% if true %}hello{% endif %}", "leaves out the text of the user's messa"),
        ("{{ messages[0]['role'] }}", "leaves out the text of the user's messages"),
        (f"{LOOP}{{{{ messages[0]['content'] }}}}", "it has not ended after 100,000 lines; mend"),
        ("{{ messages[0]['content'] }}{% for i in range(10 ** 9) %}{% endfor %}", "Range too big"),
        ("{{ messages[0]['content'] + 1 }}", "can only concatenate str"),
        ("{{ messages[7]['content'] }}", "has no element 7"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ raise_exception('only tools') }}", "only tools; mend it, or set sft.chat_template"),
    ],
    ids=["constant", "role", "loops", "range", "type", "index", "zero", "raise"],
)
def test_a_template_that_fails_or_loses_the_text_is_refused(folder, template, why):
    with pytest.raises(ConfigError, match="the chat template") as caught:
        start(folder, chat_template=template)
    assert why in str(caught.value)


def test_an_error_of_syntax_is_found_by_validation_and_tags_of_transformers_are_none():
    with pytest.raises(ValueError, match=r"expected a Jinja template, found an error in line 2"):
        SftConfig(chat_template="{% for m in messages %}\n{% end %}")
    marked = "{{ messages }}{% generation %}{% break %}{%- endgeneration -%}"
    assert SftConfig(chat_template="{% for m in messages %}" + marked + "{% endfor %}")


# ------------------------------------------- tokenizers


@pytest.mark.parametrize(
    ("pad", "why"),
    [
        ("<padd>", "pad_token '<padd>' is not in the tokenizer's vocabulary; did you mean '<pad>'"),
        ("[PAD]", "is not in the tokenizer's vocabulary; "),
        ("tea", "pad_token 'tea' is an ordinary token, and where a text contains it"),
        ("</s>", "needs a pad_token that is not its eos_token"),
    ],
)
def test_a_padding_token_must_exist_and_be_unused(folder, pad, why):
    with pytest.raises(ConfigError) as caught:
        start(folder, pad_token=pad)
    assert why in str(caught.value)


def test_a_tokenizer_larger_than_the_embedding_is_refused(folder):
    tokenizer = hub.load_tokenizer(folder)
    tokenizer.add_tokens(["<new>"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(DataError, match=r"the id (\d+) \('<new>'\).*embedding has only \1 rows"):
        start(folder)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_an_end_id_outside_of_the_vocabulary_is_refused(folder, name):
    change(folder / name, eos_token_id=[2, 9999])
    with pytest.raises(DataError, match="eos_token_id 9999 is outside of its vocabulary"):
        start(folder)


def test_sequences_longer_than_the_models_positions_are_refused(folder):
    with pytest.raises(ConfigError, match=r"max_tokens 97 is more than the model's 96 positions"):
        start(folder, training={"max_tokens": 97})


# ------------------------------------------- weights


def test_a_folder_that_is_missing_or_a_file_says_so(folder):
    with pytest.raises(DataError, match="expected the folder of a Hugging Face model, found nothi"):
        start(folder / "gone")
    with pytest.raises(DataError, match="the folder of a Hugging Face model, found a file"):
        start(folder / "config.json")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("config.json", "has no config.json, so it is no model; it has: "),
        (
            "model.safetensors",
            "has no weights (*.safetensors or *.bin); copy them there. it has",
        ),
        ("tokenizer.json", "has no tokenizer, e.g. tokenizer.json; copy it there. "),
    ],
)
def test_a_missing_file_is_named(folder, name, why):
    (folder / name).unlink()
    with pytest.raises(DataError) as caught:
        start(folder)
    assert why in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("size", [0, 40])
def test_a_file_that_is_cut_short_is_no_traceback(folder, name, size):
    (folder / name).write_bytes((folder / name).read_bytes()[:size])
    with pytest.raises(DataError, match=r"does not hold a .*check its files, or copy them again"):
        start(folder)


def test_weights_that_are_not_finite_are_named(folder):
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    weights[name][3, 3] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=f"tensor {name} has values that are NaN or infinite"):
        start(folder)


def test_a_row_of_the_embedding_that_is_not_finite_is_found_too(folder):
    change(folder / "config.json", tie_word_embeddings=False)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = torch.zeros_like(weights["model.embed_tokens.weight"])
    weights["model.embed_tokens.weight"][-1] = float("inf")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"tensor model\.embed_tokens\.weight has values that are"):
        start(folder)


def test_heads_that_do_not_divide_the_width_are_an_error_of_the_folder(folder):
    change(folder / "config.json", num_attention_heads=3, head_dim=None)
    with pytest.raises(DataError, match="does not hold a"):
        start(folder)


def test_a_hub_id_that_is_a_folder_here_is_not_taken_for_it(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    config = SftConfig.model_validate({"base": {"name": "hub", "repo": "model"}, "data": CAFE})
    with pytest.raises(DataError, match=r"a folder model is in .*use `name: local`, or start from"):
        base_tokenizer(config, config.base, config.data)


def test_a_tied_reward_model_is_no_base(folder, tokenizer):
    model = hub.load_scalar_model(folder)
    hub.save(model, tokenizer, folder)
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"]
    with pytest.raises(DataError, match=r"is a reward model or another classifier .*score\.weight"):
        start(folder)
