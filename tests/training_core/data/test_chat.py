"""Messages to ids: only the response and its end are trained."""

import copy

import pytest

from training_core.data.chat import (
    CHAT_TEMPLATES,
    encode_prompt,
    encode_responses,
    require_special_tokens,
)
from training_core.errors import ConfigError, DataError

ORDER = ({"role": "user", "content": "we take two tea please"},)
ANSWER = "here are two tea . enjoy !"


def encode_response(tokenizer, prompt, response, *, max_tokens):
    """Encode one response to its end."""
    return encode_responses(
        tokenizer, [prompt], [response], max_tokens=max_tokens, is_finished=[True]
    )[0]


@pytest.fixture
def own(tokenizer):
    """A copy that a test may spoil."""
    return copy.deepcopy(tokenizer)


def test_the_prompt_ends_where_the_answer_begins(tokenizer):
    prompt = encode_prompt(tokenizer, "1", ORDER)
    assert prompt.text == "<s><user> we take two tea please <assistant> "
    assert tokenizer.convert_ids_to_tokens(prompt.input_ids) == [
        "<s>", "<user>", "we", "take", "two", "tea", "please", "<assistant>",
    ]  # fmt: skip


def test_exactly_the_response_and_the_end_token_are_trained(tokenizer):
    prompt = encode_prompt(tokenizer, "1", ORDER)
    example = encode_response(tokenizer, prompt, ANSWER, max_tokens=64)
    trained = [i for i, m in zip(example.input_ids, example.loss_mask, strict=True) if m]
    assert tokenizer.decode(trained) == f"{ANSWER} </s>"
    assert trained[-1] == tokenizer.eos_token_id
    assert example.loss_mask[: len(prompt.input_ids)] == (0,) * len(prompt.input_ids)


@pytest.mark.parametrize("template", sorted(CHAT_TEMPLATES))
def test_training_sees_the_ids_that_sampling_starts_from(own, template):
    own.chat_template = CHAT_TEMPLATES[template]
    prompt = encode_prompt(own, "1", ORDER)
    example = encode_response(own, prompt, ANSWER, max_tokens=64)
    assert example.input_ids[: len(prompt.input_ids)] == prompt.input_ids
    assert prompt.input_ids.count(own.bos_token_id) == 1


def test_a_conversation_of_two_turns_shows_the_first_answer_and_its_end(tokenizer):
    turns = (*ORDER, {"role": "assistant", "content": "here are two tea ."}, *ORDER)
    prompt = encode_prompt(tokenizer, "1", turns)
    assert tokenizer.convert_ids_to_tokens(prompt.input_ids).count("</s>") == 1
    assert tokenizer.convert_ids_to_tokens(prompt.input_ids)[-1] == "<assistant>"


def test_a_template_that_adds_a_second_bos_is_refused(own):
    own.chat_template = "{{ bos_token }} " + CHAT_TEMPLATES["roles"]
    with pytest.raises(DataError, match="prompt 7 starts with two bos tokens"):
        encode_prompt(own, "7", ORDER)


def test_a_pad_token_that_is_the_end_token_is_refused(own):
    own.pad_token = own.eos_token
    with pytest.raises(ConfigError, match=r"pad_token that is not its eos_token.*sft\.pad_token"):
        require_special_tokens(own)


def test_a_missing_pad_token_end_token_or_template_is_refused(own):
    require_special_tokens(own)
    for name in ("chat_template", "pad_token", "eos_token"):  # the later hides the earlier
        setattr(own, name, None)
        with pytest.raises(ConfigError, match=name.replace("_", ".")):
            require_special_tokens(own)


def test_a_row_that_is_too_long_is_dropped_and_never_cut(tokenizer):
    prompt = encode_prompt(tokenizer, "1", ORDER)
    size = len(prompt.input_ids) + len(ANSWER.split()) + 1  # and the end token
    assert len(encode_response(tokenizer, prompt, ANSWER, max_tokens=size)) == size
    assert encode_response(tokenizer, prompt, ANSWER, max_tokens=size - 1) is None


@pytest.mark.parametrize("empty", ["", "   "])
def test_a_response_without_tokens_is_an_error_that_names_the_prompt(tokenizer, empty):
    with pytest.raises(DataError, match=r"prompt 12: the response .* has no tokens"):
        encode_response(tokenizer, encode_prompt(tokenizer, "12", ORDER), empty, max_tokens=64)
