"""The grammar of names, checked before a name becomes a part of a path.

    name    tiny, rejection_sft, policy_dpo_1, a2      letters, digits, `_` and `-`; the first is a
                                                       letter or a digit; at most 100 characters
    file    model.safetensors, sub/config.json         a path below its folder, without `..`

Lifecycles, presets, stages, stage keys, steps, roles and attempts have names of the first kind.
Artifacts, checkpoints and weight indexes list files of the second kind.
"""

from __future__ import annotations

import re

from training_core.errors import ConfigError, RatchetError

MAX_LENGTH = 100
"""Names get suffixes (`.reward-model`) and become files and MLflow's names: their limit is 250."""

NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{MAX_LENGTH - 1}}}")
EXPECTED_NAME = (
    "expected letters, digits, '_' and '-', the first a letter or a digit, "
    f"at most {MAX_LENGTH} characters"
)
EXPECTED_FILE = "expected a path below its folder, without '..' and not absolute"


def is_name(text: str) -> bool:
    """Whether `text` is a name."""
    return NAME.fullmatch(text) is not None


def is_file_below(text: str) -> bool:
    """Whether `text` is the path of a file below a folder, written with `/`."""
    parts = text.split("/")
    return "\0" not in text and not any(part in {"", ".", ".."} for part in parts)


def require_name(
    what: str, text: str, *, remedy: str = "correct it", error: type[RatchetError] = ConfigError
) -> str:
    """Return `text` if it is a name.

    Args:
        what: what it names, e.g. `lifecycle`, for the message.
        text: the name.
        remedy: what to do, for the message.
        error: class of the error.

    Raises:
        ConfigError: or the class `error`, if it is not a name.
    """
    if not is_name(text):
        raise error(f"{what}: {EXPECTED_NAME}, found {text!r:.120}; {remedy}")
    return text


def checked_name(text: str) -> str:
    """Return `text` if it is a name; a validator of pydantic, which wants a ValueError."""
    if not is_name(text):
        raise ValueError(f"{EXPECTED_NAME}, found {text!r:.120}")
    return text


def checked_file(text: str) -> str:
    """Return `text` if it is a file below its folder; a validator of pydantic."""
    if not is_file_below(text):
        raise ValueError(f"{EXPECTED_FILE}, found {text!r:.120}")
    return text
