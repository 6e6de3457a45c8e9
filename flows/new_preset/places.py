"""Where the model and the data of a person are, as a preset in their folder names them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from flows.config.given_models import PATHS, REGISTRY
from stages.configs.model_config import ExternalModelConfig, HubModelConfig, LocalModelConfig
from training_core.errors import ConfigError
from training_core.models.folders import is_hub_id


@dataclass(frozen=True)
class ModelPlace:
    """Where a model is.

    Attributes:
        text: as a preset names it in `given`; a folder is relative to the preset.
        config: the same as seen from here; None for a registered model.
    """

    text: str
    config: ExternalModelConfig | None

    @property
    def base(self) -> dict[str, str]:
        """The block `sft.base` of the preset."""
        if isinstance(self.config, HubModelConfig):
            return {"name": "hub", "repo": self.config.repo}
        return {"name": "local", "path": self.text}


def model_place(text: str, folder: Path) -> ModelPlace:
    """Find the model that a person names.

    Args:
        text: a registered version, a folder, or an id of the hub. A folder has precedence.
        folder: of the preset.

    Raises:
        ConfigError: if there is no such folder, or the text is none of these.
    """
    if text.startswith(REGISTRY):
        return ModelPlace(text, None)
    path = Path(text).expanduser()
    if path.is_dir():
        return ModelPlace(relative(path, folder), LocalModelConfig(path=str(path.resolve())))
    if text.startswith(PATHS) or not is_hub_id(text):
        raise ConfigError(
            f"expected a model: a folder, an id of the hub (owner/name), or {REGISTRY}…, "
            f"found {text!r:.120}, which is no folder that exists; correct it"
        )
    return ModelPlace(text, HubModelConfig(repo=text))


def relative(path: Path | str, folder: Path) -> str:
    """Return a path as seen from the folder of the preset; it begins with ./ or ../."""
    found = os.path.relpath(Path(path).expanduser().absolute(), folder.absolute())
    return found if found.startswith("../") else f"./{found}"
