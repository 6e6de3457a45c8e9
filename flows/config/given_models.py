"""Models that exist already, in the place of steps that would make them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from stages.configs.block import Block, StageConfig, operational, semantic
from stages.configs.given_policy_config import GivenPolicyConfig
from stages.configs.given_reward_model_config import GivenRewardModelConfig
from stages.configs.model_config import HubModelConfig, LocalModelConfig

REGISTRY = "models:/"
PATHS = ("/", "./", "../", "~")
"""A path begins with one of these; everything else is an id of the hub."""
GivenKind = Literal["policy", "reward_model"]


class RegisteredModelConfig(Block):
    """A version of a model in MLflow."""

    name: Literal["registered"] = operational("registered", "Kind of the place.")
    uri: str = operational(
        ...,
        "`models:/<name>/<version>` or `models:/<name>@<alias>`; a flow resolves an alias when it "
        "starts.",
        pattern=r"^models:/[^/@]+[/@][^/@]+$",
    )


class GivenModelConfig(Block):
    """A model that exists already. A text alone is its `model`."""

    model: Annotated[
        RegisteredModelConfig | LocalModelConfig | HubModelConfig, Field(discriminator="name")
    ] = semantic(
        ...,
        "`models:/…` of the registry; a directory, which begins with `/`, `./` or `../`; or an id "
        "of the hub.",
    )
    kind: GivenKind | None = semantic(
        None, "What it is; None: `reward_model` under that name, else `policy`."
    )
    chat_template: str | None = semantic(
        None, "As `chat_template` of SFT; None keeps the tokenizer's template."
    )
    pad_token: str | None = semantic(None, "Padding token; None keeps the tokenizer's token.")

    @model_validator(mode="before")
    @classmethod
    def _may_be_a_text(cls, fields: object) -> object:
        if isinstance(fields, str):
            return {"model": _place_of(fields)}
        if isinstance(fields, dict) and isinstance(text := fields.get("model"), str):
            return {**fields, "model": _place_of(text)}
        return fields

    def kind_as(self, name: str) -> GivenKind:
        """Return what it is, if it stands under this name."""
        return self.kind or ("reward_model" if name == "reward_model" else "policy")

    def stage_config(self, model: LocalModelConfig | HubModelConfig, name: str) -> StageConfig:
        """Return the config of the stage that brings a model to the store."""
        if self.kind_as(name) == "reward_model":
            return GivenRewardModelConfig(model=model)
        return GivenPolicyConfig(
            model=model, chat_template=self.chat_template, pad_token=self.pad_token
        )


def _place_of(text: str) -> dict[str, Any]:
    if text.startswith(REGISTRY):
        return {"name": "registered", "uri": text}
    if text.startswith(PATHS):
        return {"name": "local", "path": text}
    return {"name": "hub", "repo": text}
