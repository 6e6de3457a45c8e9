"""Chat templates by name, and plain prompt templates.

Imports no transformers, so that a config can be validated quickly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from string import Formatter

from training_core.errors import ConfigError, DataError

ALTERNATE = (
    "{% if message['role'] == 'system' and not loop.first %}"
    "{{ raise_exception('a system message must be the first message') }}"
    "{% elif message['role'] == 'assistant' and loop.first %}"
    "{{ raise_exception('the first message must not be the assistant\\'s') }}"
    "{% elif not loop.first and message['role'] == messages[loop.index0 - 1]['role']"
    " and message['role'] in ('user', 'assistant') %}"
    "{{ raise_exception('messages of user and assistant must alternate') }}"
    "{% endif %}"
)
"""Refuses an order of turns that a format cannot express, as Gemma's own template does."""

CHAT_TEMPLATES: dict[str, str] = {
    # For continuing a text: bos, then only the contents, one after the other.
    "plain": "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}",
    # Roles as tokens, for tokenizers with the tokens `<user>` and `<assistant>`.
    "roles": (
        "{{ bos_token }}{% for message in messages %}"
        "{{ '<' + message['role'] + '> ' + message['content'] }}"
        "{% if message['role'] == 'assistant' %}{{ ' ' + eos_token }}{% endif %}"
        "{{ ' ' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<assistant> ' }}{% endif %}"
    ),
    # Llama 3's headers, with the tokenizer's end token after every turn.
    "llama3": (
        "{{ bos_token }}{% for message in messages %}"
        "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
        " + message['content'] + eos_token }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
        "{% endif %}"
    ),
    # ChatML's headers (Qwen, SmolLM), with the tokenizer's end token after every turn. For models
    # that were trained with ChatML it is <|im_end|>.
    "chatml": (
        "{{ bos_token }}{% for message in messages %}"
        "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + eos_token + '\n' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    # Zephyr's and TinyLlama's headers (alignment-handbook, recipes/zephyr-7b-beta).
    "zephyr": (
        "{{ bos_token }}{% for message in messages %}"
        "{{ '<|' + message['role'] + '|>\n' + message['content'] + eos_token + '\n' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
    ),
    # Gemma 1 and 2. They have no system role: its text comes before the first user message. Like
    # Gemma's own template it refuses turns that do not alternate.
    "gemma": (
        "{{ bos_token }}{% for message in messages %}"
        f"{ALTERNATE}"
        "{% if message['role'] == 'system' %}"
        "{{ '<start_of_turn>user\n' + message['content'] | trim + '\n\n' }}"
        "{% else %}"
        "{% if loop.first or messages[loop.index0 - 1]['role'] != 'system' %}"
        "{{ '<start_of_turn>' }}"
        "{{ ('model' if message['role'] == 'assistant' else message['role']) + '\n' }}"
        "{% endif %}"
        "{{ message['content'] | trim + '<end_of_turn>\n' }}"
        "{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
    ),
}

REWARD_SUFFIX = " <rm_score>: {reward:.2f} "
"""Suffix of prompts in conditional SFT (from OpenRLHF's `csft`, until its version 0.9.5)."""

NUMBER_FORMAT = re.compile(r"(?:[^{}]?[<>=^])?[ +-]?0?\d{0,2},?(?:\.\d{1,2})?[eEfFgG%]?")
"""Python's format of a number, at most 99 characters wide."""


def chat_template(name_or_jinja: str) -> str:
    """Return the template for a name or a prompt format; a Jinja template is returned unchanged.

    Raises:
        ConfigError: if the text is none of these, the message suggests the nearest name; if it is
            no valid Jinja.
    """
    if name_or_jinja in CHAT_TEMPLATES:
        return CHAT_TEMPLATES[name_or_jinja]
    if "{{" in name_or_jinja or "{%" in name_or_jinja:
        _require_syntax(name_or_jinja)
        return name_or_jinja
    if "{" in name_or_jinja:
        return template_from_prompt(name_or_jinja)
    near = get_close_matches(name_or_jinja, CHAT_TEMPLATES, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"names are: {', '.join(CHAT_TEMPLATES)}"
    raise ConfigError(
        "chat_template: expected a name, a format with {} or a Jinja template, "
        f"found '{name_or_jinja}'; {hint}"
    )


def _require_syntax(template: str) -> None:
    from jinja2 import Environment, TemplateSyntaxError  # noqa: PLC0415 - most configs need none

    # `generation` is a tag of transformers around the assistant's text.
    plain = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", template)
    try:
        Environment(autoescape=False, extensions=["jinja2.ext.loopcontrols"]).parse(plain)
    except TemplateSyntaxError as error:
        raise ConfigError(
            f"chat_template: expected a Jinja template, found an error in line {error.lineno}: "
            f"{error}; mend it"
        ) from error


def template_from_prompt(prompt_format: str) -> str:
    r"""Convert a prompt format, e.g. "User: {}\nAssistant: ", to an equivalent chat template.

    A text begins with the bos token, if the tokenizer has one. A user message replaces `{}`. A
    system message comes before, on its own line. The end token follows every assistant message.

    Raises:
        ConfigError: if there is not exactly one `{}`, or if a line break is written as the two
            characters backslash and n, e.g. by a shell or in unquoted YAML.
    """
    if prompt_format.count("{}") != 1:
        raise ConfigError(
            "chat_template: expected exactly one {} for the prompt, "
            f"found {prompt_format.count('{}')} in {prompt_format!r}"
        )
    if "\\n" in prompt_format:
        raise ConfigError(
            r"chat_template: found the two characters '\n' instead of a line break in "
            f'{prompt_format!r}; in YAML, write the text in double quotes: "…\\n…"'
        )
    before, after = (ascii(part) for part in prompt_format.split("{}"))  # a literal for Jinja
    return (
        "{{ bos_token }}{% for message in messages %}"
        f"{ALTERNATE}"
        "{% if message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
        "{% elif message['role'] == 'system' %}{{ message['content'] + '\\n' }}"
        f"{{% else %}}{{{{ {before} + message['content'] + {after} }}}}{{% endif %}}"
        "{% endfor %}"
    )


def ending_at_the_response(template: str) -> str:
    """Change a template so that a text that ends with an answer ends with the end token.

    A reward model scores the last token of prompt, response and end token. Many templates write
    something else there, e.g. a line break after the end token, or no end token. With the changed
    template, `apply_chat_template` and a plain `AutoModelForSequenceClassification` see the tokens
    that Ratchet scores. Texts with the generation prompt do not change.
    """
    return (
        "{% set is_answered = not add_generation_prompt and messages"
        " and messages[-1]['role'] == 'assistant' %}"
        "{% if is_answered %}"
        "{% set response = messages[-1]['content'] %}{% set messages = messages[:-1] %}"
        "{% set add_generation_prompt = true %}"
        "{% endif %}"
        f"{template}"
        "{% if is_answered %}{{ response + eos_token }}{% endif %}"
    )


def with_reward(
    messages: Sequence[Mapping[str, str]], reward: float | None, suffix: str = REWARD_SUFFIX
) -> tuple[Mapping[str, str], ...]:
    """Append the actual or the wanted reward of the response to the last message of a prompt.

    Source: conditional SFT as in SteerLM (Dong et al. 2023, https://arxiv.org/abs/2310.05344), with
    OpenRLHF's text.

    Args:
        messages: the prompt.
        reward: reward of the response, on the scale of the data's rewards.
        suffix: a format with `{reward}`.

    Raises:
        DataError: if the reward is missing.
        ConfigError: if `suffix` does not contain `{reward}`, or contains another field.
    """
    if reward is None:
        raise DataError(
            "conditional SFT needs a reward with every row, found a row without one; "
            "add a field `reward`, or remove reward_suffix"
        )
    *before, last = messages
    shown = reward_format(suffix).format(reward=reward)
    return (*before, {**last, "content": last["content"] + shown})


def reward_format(suffix: str) -> str:
    """Return a suffix with `{reward}` or e.g. `{reward:.2f}`, if it contains no other field.

    In Python's format a field can also read attributes, e.g. `{reward.__class__}`, and fill
    gigabytes, e.g. `{reward:9999999999}`; both are refused.

    Raises:
        ConfigError: if it has another field or none.
    """
    try:
        fields = [part[1:] for part in Formatter().parse(suffix) if part[1] is not None]
    except ValueError:  # e.g. a brace that is not closed
        fields = []
    is_plain = all(
        name == "reward" and not conversion and NUMBER_FORMAT.fullmatch(number_format or "")
        for name, number_format, conversion in fields
    )
    if not (fields and is_plain):
        raise ConfigError(
            "reward_suffix: expected a format whose only field is {reward}, with or without a "
            f"number format, e.g. {REWARD_SUFFIX!r}, found {suffix!r}"
        )
    return suffix
