"""The type of a field that names a chat template."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from training_core.data.templates import chat_template
from training_core.errors import ConfigError


def _is_a_template(value: str) -> str:
    try:
        chat_template(value)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return value


TemplateName = Annotated[str, AfterValidator(_is_a_template)]
"""A template's name, a prompt format, or Jinja; see `chat_template`."""
