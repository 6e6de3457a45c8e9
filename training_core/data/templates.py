"""Chat templates by name. Imports nothing, so that a config can be checked without transformers."""

from __future__ import annotations

from difflib import get_close_matches

from training_core.errors import ConfigError

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
}


def chat_template(name_or_jinja: str) -> str:
    """Return the template of that name, or the Jinja text itself.

    Raises:
        ConfigError: for a word that is neither, naming the nearest name.
    """
    if name_or_jinja in CHAT_TEMPLATES:
        return CHAT_TEMPLATES[name_or_jinja]
    if "{{" in name_or_jinja or "{%" in name_or_jinja:
        return name_or_jinja
    near = get_close_matches(name_or_jinja, CHAT_TEMPLATES, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"names are: {', '.join(CHAT_TEMPLATES)}"
    raise ConfigError(
        f"chat_template: expected a name or a Jinja template, found '{name_or_jinja}'; {hint}"
    )
