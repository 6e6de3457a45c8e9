"""Every answer of a conversation is trained, whatever the template, and nothing else is."""

import copy
from itertools import groupby

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from training_core.data.chat import encode_prompts, encode_responses
from training_core.data.conversations import encode_conversations, masked_prompts
from training_core.data.templates import CHAT_TEMPLATES, template_from_prompt
from training_core.errors import ConfigError, DataError

WORDS = [
    "Yes. I do like two cups of tea, please!",
    "Do you?",
    "\n\nassistant user think",
    "Ответ ☕",
]
MARKS = ["<|im_start|>", "<|im_end|>", "<pad>", "<s>", "<user>", "<assistant>", "<end_of_turn>"]

# Cuts the reasoning out of earlier answers, as Qwen 3's template does; the last one keeps it.
THINKING = (
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m['role'] == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% endfor %}"
    "{% for m in messages %}{% set text = m['content'] %}{% set thought = '' %}"
    "{% if m['role'] == 'assistant' and '</think>' in text %}"
    "{% set thought = text.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' and loop.index0 > ns.last %}"
    "{{ '<think>\n' + thought + '\n</think>\n\n' }}{% endif %}"
    "{{ text + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SHOUTING = (
    "{% for m in messages %}"
    "{{ (m['content'] | upper if m['role'] == 'assistant' else m['content']) + '<|im_end|>' }}"
    "{% endfor %}"
)
PICKY = "{{ raise_exception('roles must alternate') if messages[0]['role'] != 'user' else 'x' }}"

TALK = (
    {"role": "user", "content": "Yes."},  # what the assistant says, too
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Do you like tea?"},
    {"role": "assistant", "content": "I do ☕ like tea."},
    {"role": "user", "content": "Two cups, please!"},
)
TEMPLATES = {**CHAT_TEMPLATES, "prompt": template_from_prompt("User: {}\nAssistant: ")}


def bpe(template, *, trims=True):
    """A byte-level BPE tokenizer with ChatML's marks, as GPT-2's and Qwen's are."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trims)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=MARKS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(WORDS * 20, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="<|im_end|>", pad_token="<pad>"
    )
    wrapped.chat_template = template
    return wrapped


def encode(tokenizer, prompt, response="It is here.", **settings):
    (example,) = encode_conversations(
        tokenizer, ["1"], [prompt], [response], **{"max_tokens": 999, **settings}
    )
    return example


def trained(tokenizer, example):
    """The trained runs of tokens, decoded."""
    pairs = zip(example.input_ids, example.loss_mask, strict=True)
    runs = groupby(pairs, key=lambda p: p[1])
    return [tokenizer.decode([token for token, _ in run]) for mask, run in runs if mask]


# ------------------------------------------- family 15: the mask is off by one


@pytest.mark.parametrize("trims", [True, False])
@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_each_answer_is_trained_to_the_byte_with_its_end_and_no_header(name, trims):
    tokenizer = bpe(TEMPLATES[name], trims=trims)
    end = {"plain": "", "gemma": "<end_of_turn>", "roles": " <|im_end|>"}.get(name, "<|im_end|>")
    found = trained(tokenizer, encode(tokenizer, TALK))
    if name in ("prompt", "roles"):  # their header ends with a space, which belongs to the word
        found = [text.removeprefix(" ") for text in found]
    assert found == [f"Yes.{end}", f"I do ☕ like tea.{end}", "It is here.<|im_end|>"]


def test_words_that_a_tokenizer_writes_with_the_space_before_them_are_trained_whole(tokenizer):
    # `roles` puts "<assistant> " before and " </s> " after; this tokenizer splits at white space
    talk = [{"role": r, "content": c} for r, c in (("user", "tea"), ("assistant", "two tea"))]
    example = encode(tokenizer, [*talk, talk[0]], "one tea")
    assert trained(tokenizer, example) == ["two tea </s>", "one tea </s>"]


def test_a_word_that_begins_in_the_headers_space_is_trained():
    tokenizer = bpe(template_from_prompt("{} A:"), trims=False)
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{{ message['content'] + eos", "{{ ' ' + message['content'] + eos"
    )
    found = trained(tokenizer, encode(tokenizer, TALK))
    assert [text.strip() for text in found] == [
        "Yes.<|im_end|>", "I do ☕ like tea.<|im_end|>", "It is here.<|im_end|>",
    ]  # fmt: skip


def test_a_token_that_takes_from_the_next_speakers_words_is_not_trained():
    tokenizer = bpe(CHAT_TEMPLATES["plain"])  # nothing stands between two messages
    talk = [
        {"role": "user", "content": "Two cups, "},
        {"role": "assistant", "content": "I do li"},
        {"role": "user", "content": "ke tea."},
    ]
    assert " like" in [tokenizer.decode([i]) for i in encode(tokenizer, talk).input_ids]
    assert trained(tokenizer, encode(tokenizer, talk)) == [" I do", "It is here.<|im_end|>"]


# ------------------------------------------- what train_on changes, and what it does not


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_what_is_trained_changes_no_id(name):
    tokenizer = bpe(TEMPLATES[name])
    found = [encode(tokenizer, TALK, train_on=t) for t in ("every_turn", "last_turn", "all_tokens")]
    assert len({e.input_ids for e in found}) == 1
    prompts = encode_prompts(tokenizer, ["1"], [TALK])
    (last,) = encode_responses(
        tokenizer, prompts, ["It is here."], max_tokens=999, is_finished=[True]
    )
    assert found[1] == last
    assert found[2].loss_mask == (0, *(1,) * (len(last) - 1))  # nothing predicts the first token


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_a_single_turn_is_what_sampling_sees_followed_by_the_response(name):
    tokenizer = bpe(TEMPLATES[name])
    (prompt,) = encode_prompts(tokenizer, ["1"], [TALK[:1]])
    alone = tokenizer("It is here.", add_special_tokens=False).input_ids
    example = encode(tokenizer, TALK[:1])
    assert example.input_ids == (*prompt.input_ids, *alone, tokenizer.eos_token_id)


def test_many_rows_at_once_give_the_ids_and_masks_of_each_alone():
    tokenizer = bpe(CHAT_TEMPLATES["chatml"])
    talks = [TALK, TALK[:1], TALK[2:], TALK[:3]]
    some = encode_conversations(tokenizer, list("abcd"), talks, ["Yes."] * 4, max_tokens=999)
    assert some == [encode(tokenizer, talk, "Yes.") for talk in talks]


def test_the_prompt_of_a_conversation_is_the_one_that_sampling_sees():
    tokenizer = bpe(CHAT_TEMPLATES["chatml"])
    assert [p for p, _ in masked_prompts(tokenizer, ["1"], [TALK])] == encode_prompts(
        tokenizer, ["1"], [TALK]
    )


def test_a_response_that_sampling_cut_has_no_end_and_its_earlier_turns_have():
    tokenizer = bpe(CHAT_TEMPLATES["chatml"])
    example = encode(tokenizer, TALK[:3], "Yes", is_finished=[False])
    assert trained(tokenizer, example) == ["Yes.<|im_end|>", "Yes"]


# ------------------------------------------- families 5 and 16: nothing or the end is not trained


def test_the_end_of_every_turn_is_trained_whatever_the_padding_token_is():
    tokenizer = bpe(CHAT_TEMPLATES["chatml"])
    example = encode(tokenizer, TALK)
    tokenizer.pad_token = tokenizer.eos_token  # refused elsewhere; here it must not matter
    assert encode(tokenizer, TALK) == example
    ends = [m for i, m in zip(example.input_ids, example.loss_mask, strict=True)
            if i == tokenizer.eos_token_id]  # fmt: skip
    assert ends == [0, 1, 0, 1, 0, 1]  # user and assistant in turn


def test_an_answer_without_tokens_is_an_error(tokenizer):
    own = copy.deepcopy(tokenizer)
    own.chat_template = (
        "{% for m in messages %}{{ m['content'] if m['role'] == 'user' else '' }}{% endfor %}x"
    )
    with pytest.raises(DataError, match="message 2, by the assistant: the chat template rewrote"):
        encode(own, TALK)


# ------------------------------------------- family 17: templates that rewrite


def test_only_what_the_template_left_of_an_earlier_answer_is_trained():
    tokenizer = bpe(THINKING)
    talk = [
        TALK[0],
        {"role": "assistant", "content": "<think>\nDo I?\n</think>\n\nI do."},
        TALK[2],
    ]
    example = encode(tokenizer, talk, "<think>\nI\n</think>\n\nYes.")
    assert "Do I?" not in tokenizer.decode(example.input_ids)
    assert trained(tokenizer, example) == [
        "I do.<|im_end|>",
        "<think>\nI\n</think>\n\nYes.<|im_end|>",
    ]


def test_an_answer_whose_reasoning_the_template_keeps_is_trained_with_it():
    tokenizer = bpe(THINKING)
    talk = [
        TALK[0],
        {"role": "assistant", "content": "<think>Do I?</think>I do."},  # after the last question
        {"role": "tool", "content": "two cups"},
    ]
    found = trained(tokenizer, encode(tokenizer, talk, "Yes."))
    assert found[0] == "<think>\nDo I?\n</think>\n\nI do.<|im_end|>"  # as the template wrote it


def test_an_answer_that_repeats_the_question_and_the_header_is_found_where_it_stands():
    tokenizer = bpe(CHAT_TEMPLATES["chatml"])
    tricky = "Yes.\nassistant\nYes."
    talk = [TALK[0], {"role": "assistant", "content": tricky}, TALK[0]]
    assert trained(tokenizer, encode(tokenizer, talk))[0] == f"{tricky}<|im_end|>"


def test_white_space_that_a_template_trims_is_not_missed():
    tokenizer = bpe(
        CHAT_TEMPLATES["chatml"].replace("message['content']", "message['content']|trim")
    )
    talk = [TALK[0], {"role": "assistant", "content": "  I do. \n"}, TALK[2]]
    assert trained(tokenizer, encode(tokenizer, talk))[0] == "I do.<|im_end|>"


@pytest.mark.parametrize("place", [0, 1])
def test_a_control_token_in_a_prompt_is_refused_with_its_place(place):
    """Rendered, it would end the turn or begin another."""
    talk = [dict(message) for message in TALK]
    talk[place]["content"] = "Yes.<|im_end|>\n"
    role = talk[place]["role"]
    tokenizer = bpe(CHAT_TEMPLATES["chatml"])
    with pytest.raises(DataError, match=rf"prompt 1: a message by the {role} .*'<\|im_end\|>'"):
        encode(tokenizer, talk)
    with pytest.raises(DataError, match="which is a control token"):
        encode_prompts(tokenizer, ["1"], [talk])


def test_a_control_token_in_a_response_is_read_as_text():
    tokenizer = bpe(CHAT_TEMPLATES["chatml"])
    end, text = tokenizer.eos_token_id, "Yes.<|im_end|> Do you?"
    prompts = encode_prompts(tokenizer, ["1"], [TALK[:1]])
    (example,) = encode_responses(tokenizer, prompts, [text], max_tokens=99, is_finished=[True])
    assert example is not None
    response = example.input_ids[len(prompts[0].input_ids) :]
    assert (response.index(end), response[-1]) == (len(response) - 1, end)
    assert tokenizer.decode(response[:-1]) == text


def test_an_answer_that_cannot_be_found_again_is_an_error_that_names_the_turn():
    with pytest.raises(
        DataError, match=r"prompt 1, message 2, by the assistant.*'Yes\.'.*last_turn"
    ):
        encode(bpe(SHOUTING), TALK)


def test_a_conversation_that_the_template_refuses_is_named():
    tokenizer = bpe(PICKY)
    with pytest.raises(
        DataError, match="prompt b: the chat template refuses messages of assistant"
    ):
        encode_prompts(tokenizer, ["a", "b"], [TALK, TALK[1:]])


def test_a_tokenizer_without_offsets_is_refused_with_what_to_do():
    class Slow:
        is_fast = False

    with pytest.raises(ConfigError, match=r"needs a fast tokenizer.*train_on: last_turn"):
        masked_prompts(Slow(), ["1"], [TALK])
