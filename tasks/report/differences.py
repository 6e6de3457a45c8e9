"""What differs in the config from other runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stages.configs.dotted_fields import texts_of

ABSENT = "not set"


@dataclass(frozen=True)
class Difference:
    """A field whose value is not the same everywhere.

    Attributes:
        field: dotted name, e.g. `ppo.kl_coef`.
        now: its value in this run.
        others: its value in each of the other runs, in their order.
    """

    field: str
    now: str
    others: tuple[str, ...]


def differences(
    now: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]
) -> tuple[Difference, ...]:
    """Return the fields of `now` and of other configs that do not all have one value.

    A field without a value counts as absent.

    Args:
        now: the config of this run.
        others: configs of other runs, by a title.
    """
    mine, theirs = texts_of(now), [texts_of(config) for config in others.values()]
    fields = dict.fromkeys(field for config in (mine, *theirs) for field in config)
    found = (
        Difference(
            field, mine.get(field, ABSENT), tuple(config.get(field, ABSENT) for config in theirs)
        )
        for field in fields
    )
    return tuple(each for each in found if {each.now} != {each.now, *each.others})
