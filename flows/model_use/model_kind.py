"""Which kind of model a Hugging Face config describes."""

from __future__ import annotations

from typing import Any

from training_core.errors import DataError

ENDINGS = {
    "ForSequenceClassification": "reward_model",
    "ForTokenClassification": "process_reward_model",
}


def kind_of(config: Any) -> str:
    """Return policy, reward_model or process_reward_model, by the architecture of a config."""
    names = getattr(config, "architectures", None) or [""]
    found = (kind for ending, kind in ENDINGS.items() if names[0].endswith(ending))
    return next(found, "policy")


def require_kind(config: Any, kind: str, name: str) -> None:
    """Check which kind of model a config describes.

    Raises:
        DataError: if it is another one.
    """
    if (found := kind_of(config)) != kind:
        raise DataError(
            f"expected a {kind.replace('_', ' ')}, found in {name} a {found.replace('_', ' ')} "
            f"({', '.join(config.architectures or ['no architecture'])}); name another model"
        )
