"""Steps with names of a person's own, e.g. two SFT steps in a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeAlias

from pydantic import create_model, model_validator

from stages.catalog import STAGES
from stages.configs.block import Block, StageConfig, semantic


class _OneStage(Block):
    """One stage with its config, e.g. `{sft: {data: …}}`."""

    @model_validator(mode="after")
    def _is_one_stage(self) -> Self:
        found = [name for name, config in self if config is not None]
        if len(found) != 1:
            stages = ", ".join(type(self).model_fields)
            raise ValueError(
                "expected one stage with its config, e.g. `sft: {data: …}`, found "
                f"{' and '.join(found) or 'none'}; the stages are {stages}"
            )
        return self

    @property
    def stage(self) -> StageConfig:
        """The config of its stage."""
        return next(config for _, config in self if config is not None)


def _stages() -> dict[str, Any]:
    return {
        name: (record.config | None, semantic(None, f"Config of the stage `{name}`."))
        for name, record in STAGES.items()
        if record.makes != "evaluation" and not name.startswith("given_")
    }


if TYPE_CHECKING:
    OwnStepConfig: TypeAlias = _OneStage
else:
    OwnStepConfig = create_model(
        "OwnStepConfig",
        __base__=_OneStage,
        __module__=__name__,
        __doc__=_OneStage.__doc__,
        **_stages(),
    )
