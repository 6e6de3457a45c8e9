"""An index of weights names files of its own directory, and no others."""

import json

import pytest
from safetensors.torch import save_file

from training_core.errors import DataError
from training_core.models import hub

INDEX = "model.safetensors.index.json"


@pytest.fixture
def sharded(make_policy, tokenizer, tmp_path):
    folder = tmp_path / "model"
    make_policy().save_pretrained(folder, max_shard_size="8KB")
    tokenizer.save_pretrained(folder)
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder


def rewrite(folder, change):
    index = folder / INDEX
    content = json.loads(index.read_text())
    change(content["weight_map"])
    index.write_text(json.dumps(content))


def test_a_model_in_several_files_is_loaded(sharded):
    assert hub.load_policy(sharded).config.hidden_size == 16


@pytest.mark.parametrize("absolute", [False, True])
def test_weights_from_outside_of_the_directory_are_refused(sharded, absolute):
    elsewhere = sharded.parent / "x.safetensors"
    save_file({}, elsewhere)
    name = str(elsewhere) if absolute else "../x.safetensors"
    rewrite(sharded, lambda weights: weights.update({sorted(weights)[0]: name}))
    for load in (hub.load_policy, hub.load_scalar_model, hub.load_step_model):
        with pytest.raises(
            DataError, match=r"index\.json: expected a path below its folder.*found"
        ):
            load(sharded)


def test_a_file_that_the_index_names_and_that_is_gone_is_named(sharded):
    rewrite(sharded, lambda weights: weights.update({sorted(weights)[0]: "gone.safetensors"}))
    with pytest.raises(DataError, match=r"there is no file .*gone\.safetensors; download"):
        hub.load_policy(sharded)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": 3}', "\0"])
def test_an_index_that_is_none_is_named(sharded, content):
    (sharded / INDEX).write_text(content)
    with pytest.raises(DataError, match=r"index\.json: expected a .*found .*; download"):
        hub.load_policy(sharded)
