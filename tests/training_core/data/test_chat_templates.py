"""Templates by name, plain prompt formats, and rewards in prompts."""

import copy

import pytest
from pydantic import ValidationError

from stages.configs.sft_config import SftConfig
from training_core.data.chat import render
from training_core.data.templates import (
    CHAT_TEMPLATES,
    chat_template,
    reward_format,
    template_from_prompt,
    with_reward,
)
from training_core.errors import ConfigError, DataError

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Tea?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Two."},
]
# As the models' own templates write it, with </s> as the end token.
WRITTEN = {
    "chatml": (
        "<s><|im_start|>system\nBe brief.</s>\n<|im_start|>user\nTea?</s>\n"
        "<|im_start|>assistant\nYes.</s>\n<|im_start|>user\nTwo.</s>\n<|im_start|>assistant\n"
    ),
    "zephyr": (
        "<s><|system|>\nBe brief.</s>\n<|user|>\nTea?</s>\n<|assistant|>\nYes.</s>\n"
        "<|user|>\nTwo.</s>\n<|assistant|>\n"
    ),
    "gemma": (
        "<s><start_of_turn>user\nBe brief.\n\nTea?<end_of_turn>\n<start_of_turn>model\nYes."
        "<end_of_turn>\n<start_of_turn>user\nTwo.<end_of_turn>\n<start_of_turn>model\n"
    ),
    "llama3": (
        "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.</s>"
        "<|start_header_id|>user<|end_header_id|>\n\nTea?</s>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nYes.</s>"
        "<|start_header_id|>user<|end_header_id|>\n\nTwo.</s>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "plain": "<s>Be brief.Tea?Yes.Two.",
    "roles": "<s><system> Be brief. <user> Tea? <assistant> Yes. </s> <user> Two. <assistant> ",
}


def rendered(tokenizer, template, messages=TALK):
    own = copy.deepcopy(tokenizer)
    own.chat_template = template
    return render(own, [messages])[0]


@pytest.mark.parametrize("name", sorted(CHAT_TEMPLATES))
def test_a_named_template_writes_what_its_models_read(tokenizer, name):
    assert rendered(tokenizer, chat_template(name)) == WRITTEN[name]


def test_a_prompt_format_becomes_a_template_that_does_the_same(tokenizer):
    template = template_from_prompt("User: {}\nAssistant: ")
    assert rendered(tokenizer, template, TALK[1:2]) == "<s>User: Tea?\nAssistant: "
    assert rendered(tokenizer, template) == (
        "<s>Be brief.\nUser: Tea?\nAssistant: Yes.</s>User: Two.\nAssistant: "
    )


@pytest.mark.parametrize("text", ["'{}' \"→\" ☕ {% if %} {{ x }} \t", "{}", "\\ {}\n"])
def test_signs_that_mean_something_in_jinja_stay_what_they_are(tokenizer, text):
    expected = "<s>" + text.replace("{}", "Tea?")
    if text.count("{}") == 1:
        assert rendered(tokenizer, template_from_prompt(text), TALK[1:2]) == expected


def test_a_template_reaches_no_python(tokenizer):
    template = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(DataError, match="'__class__' of 'list' object is unsafe"):
        rendered(tokenizer, template)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("User: ", r"exactly one {} for the prompt, found 0"),
        ("{} {}", r"exactly one {} for the prompt, found 2"),
        (r"User: {}\nAssistant: ", r"two characters '\\n' instead of a line break"),
    ],
)
def test_a_prompt_format_that_would_do_something_else_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        template_from_prompt(text)


def test_a_reward_stands_at_the_end_of_the_prompt():
    found = with_reward(TALK[:2], 1.256)
    assert found[1] == {"role": "user", "content": "Tea? <rm_score>: 1.26 "}
    assert found[0] == TALK[0]
    assert TALK[1]["content"] == "Tea?"
    assert with_reward(TALK[1:2], 0.0, " [{reward:+.1f}]")[0]["content"] == "Tea? [+0.0]"


def test_a_row_without_a_reward_and_a_suffix_that_shows_none_are_refused():
    with pytest.raises(DataError, match="needs a reward with every row"):
        with_reward(TALK[:2], None)
    for suffix in (" <rm_score> ", " {score} "):
        with pytest.raises(ConfigError, match=r"expected a format whose only field is \{reward\}"):
            with_reward(TALK[:2], 1.0, suffix)


@pytest.mark.parametrize(
    "suffix",
    [
        "{reward.__class__}", "{reward.real}", "{reward[0]}", "{0}", "{}", "{reward!r}", "{other}",
        "{reward:{reward}}", "{reward:9999999999}", "{reward:.999999f}", "{reward:d}", "{reward",
    ],
)  # fmt: skip
def test_a_suffix_reads_nothing_but_the_reward(suffix):
    with pytest.raises(ConfigError, match="whose only field is"):
        reward_format(suffix)
    with pytest.raises(ValidationError, match="whose only field is"):
        SftConfig(reward_suffix=suffix)


@pytest.mark.parametrize(
    "suffix", ["{reward}", " {reward:+.1f} ", "{reward:>8.2f}", "{{x}} {reward:.0%} {reward:e}"]
)
def test_a_suffix_may_show_the_reward_in_any_number_format(suffix):
    assert SftConfig(reward_suffix=suffix).reward_suffix == suffix
    assert with_reward(TALK[1:2], 0.5, suffix)[0]["content"] == "Tea?" + suffix.format(reward=0.5)
