"""Chat templates by name, and plain prompt templates.

Imports nothing, so that a config can be checked without transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from training_core.errors import ConfigError, DataError

CHAT_TEMPLATES: dict[str, str] = {
    # Text as it is, for continuing a text: bos, then the contents one after the other.
    "plain": "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}",
    # Roles as words, for tokenizers that were made with `<user>` and `<assistant>` as tokens.
    "roles": (
        "{{ bos_token }}{% for message in messages %}"
        "{{ '<' + message['role'] + '> ' + message['content'] }}"
        "{% if message['role'] == 'assistant' %}{{ ' ' + eos_token }}{% endif %}"
        "{{ ' ' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<assistant> ' }}{% endif %}"
    ),
    # Llama 3's headers, with the tokenizer's own end token after every turn.
    "llama3": (
        "{{ bos_token }}{% for message in messages %}"
        "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
        " + message['content'] + eos_token }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
        "{% endif %}"
    ),
    # ChatML's headers (Qwen, SmolLM), with the tokenizer's own end token after every turn, which is
    # <|im_end|> for models that were trained with it.
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
    # Gemma 1 and 2, which know no system role: it stands before the first user's words.
    "gemma": (
        "{{ bos_token }}{% for message in messages %}"
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
"""What conditional SFT puts after a prompt (OpenRLHF's `csft`, as used until its version 0.9.5)."""


def chat_template(name_or_jinja: str) -> str:
    """Return the template of that name, of that prompt format, or the Jinja text itself.

    Raises:
        ConfigError: for a word that is neither, naming the nearest name.
    """
    if name_or_jinja in CHAT_TEMPLATES:
        return CHAT_TEMPLATES[name_or_jinja]
    if "{{" in name_or_jinja or "{%" in name_or_jinja:
        return name_or_jinja
    if "{" in name_or_jinja:
        return template_from_prompt(name_or_jinja)
    near = get_close_matches(name_or_jinja, CHAT_TEMPLATES, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"names are: {', '.join(CHAT_TEMPLATES)}"
    raise ConfigError(
        "chat_template: expected a name, a format with {} or a Jinja template, "
        f"found '{name_or_jinja}'; {hint}"
    )


def template_from_prompt(prompt_format: str) -> str:
    r"""Turn a prompt format, as "User: {}\nAssistant: ", into the chat template that does the same.

    A text begins with the bos token, if the tokenizer has one. Every message that is not the
    assistant's takes the place of `{}`, except a system message, which stands before on a line of
    its own. Every assistant message is followed by the end token.

    Raises:
        ConfigError: if there is not exactly one `{}`, or if a line break is written as the two
            characters backslash and n, as shells and unquoted YAML leave it.
    """
    if prompt_format.count("{}") != 1:
        raise ConfigError(
            "chat_template: expected exactly one {} where the prompt goes, "
            f"found {prompt_format.count('{}')} in {prompt_format!r}"
        )
    if "\\n" in prompt_format:
        raise ConfigError(
            r"chat_template: found the two characters '\n' instead of a line break in "
            f'{prompt_format!r}; in YAML, write the text in double quotes: "…\\n…"'
        )
    before, after = (ascii(part) for part in prompt_format.split("{}"))  # as Jinja reads a literal
    return (
        "{{ bos_token }}{% for message in messages %}"
        "{% if message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
        "{% elif message['role'] == 'system' %}{{ message['content'] + '\\n' }}"
        f"{{% else %}}{{{{ {before} + message['content'] + {after} }}}}{{% endif %}}"
        "{% endfor %}"
    )


def with_reward(
    messages: Sequence[Mapping[str, str]], reward: float | None, suffix: str = REWARD_SUFFIX
) -> tuple[Mapping[str, str], ...]:
    """Put the reward that the response earned, or shall earn, after the last message of a prompt.

    Source: conditional SFT as in SteerLM (Dong et al. 2023, https://arxiv.org/abs/2310.05344), in
    OpenRLHF's wording.

    Args:
        messages: the prompt.
        reward: in units of the reward that rated the data.
        suffix: a format with `{reward}`.

    Raises:
        DataError: if the reward is missing.
        ConfigError: if `suffix` does not show the reward.
    """
    if reward is None:
        raise DataError("conditional SFT needs a reward with every row; found a row without one")
    try:
        shown = suffix.format(reward=reward)
    except (KeyError, IndexError, ValueError) as error:
        raise ConfigError(
            f"expected a format with {{reward}}, as {REWARD_SUFFIX!r}, found {suffix!r}"
        ) from error
    if shown == suffix:
        raise ConfigError(f"expected a format with {{reward}}, found {suffix!r}")
    *before, last = messages
    return (*before, {**last, "content": last["content"] + shown})
