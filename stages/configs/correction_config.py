"""Corrections for the gap between sampler and trainer: one class per entry of `CORRECTIONS`.

Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union

from pydantic import Field

from stages.configs.block import TableEntryConfig, semantic


class BaseCorrectionConfig(TableEntryConfig):
    """What all corrections have; each subclass in this module is a choice of `ppo.correction`.

    Its fields, except `name`, are keyword arguments of the function in `CORRECTIONS`.
    """


def _max_ratio(default: float, source: str) -> Any:
    return semantic(default, f"Largest ratio of trainer to sampler ({source}).", gt=1)


class TisTokenConfig(BaseCorrectionConfig):
    """Truncated importance weight of each token, Yao et al. 2025."""

    name: Literal["tis_token"] = semantic("tis_token", "Name of the correction.")
    max_ratio: float = _max_ratio(2.0, "the authors' value")


class TisSequenceConfig(BaseCorrectionConfig):
    """Truncated importance weight of each response, Liu et al. 2025."""

    name: Literal["tis_sequence"] = semantic("tis_sequence", "Name of the correction.")
    max_ratio: float = _max_ratio(3.0, "TRL's value")


class IcepopConfig(BaseCorrectionConfig):
    """Tokens with a ratio out of range are rejected, Ling team 2025."""

    name: Literal["icepop"] = semantic("icepop", "Name of the correction.")
    low: float = semantic(0.5, "Lowest ratio of a token (paper's value).", gt=0, lt=1)
    high: float = semantic(5.0, "Highest ratio of a token (paper's value).", gt=1)


class SequenceMaskConfig(BaseCorrectionConfig):
    """Responses with a large ratio are rejected, the others weighted; Liu et al. 2025."""

    name: Literal["sequence_mask"] = semantic("sequence_mask", "Name of the correction.")
    max_ratio: float = _max_ratio(3.0, "TRL's value")


class GeometricMaskConfig(BaseCorrectionConfig):
    """Responses are rejected by the geometric mean of their ratios; not weighted."""

    name: Literal["geometric_mask"] = semantic("geometric_mask", "Name of the correction.")
    low: float = semantic(0.999, "Lowest mean ratio of a response (verl's value).", gt=0, lt=1)
    high: float = semantic(1.001, "Highest mean ratio of a response (verl's value).", gt=1)


if TYPE_CHECKING:
    CorrectionConfig: TypeAlias = BaseCorrectionConfig
else:  # any of the classes above; `name` selects it
    CorrectionConfig = Annotated[
        Union[tuple(BaseCorrectionConfig.__subclasses__())],  # noqa: UP007 - built from a list
        Field(discriminator="name"),
    ]
