"""The columns that each kind of row can have (shapes), and how a table's shape is recognised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from stages.configs.column_format import names_in
from stages.datasets.verdicts import VERDICTS
from training_core.errors import DataError


@dataclass(frozen=True)
class Shape:
    """The columns that a table of this shape must have, and those that it may have.

    `family` stands for many similar shapes in the list of all shapes of a kind.
    """

    needs: tuple[str, ...]
    may_have: tuple[str, ...] = ()
    family: str = ""

    def __str__(self) -> str:
        """The required columns, in the form that error messages use."""
        return " + ".join(self.needs)

    def used(self, available: Sequence[str]) -> frozenset[str]:
        """Return the columns of `available` that this shape uses."""
        return frozenset((*self.needs, *(c for c in self.may_have if c in available)))


def _shapes(*tables: str) -> tuple[Shape, ...]:
    """Parse "instruction (input) + output | messages": alternatives, optional columns in ()."""
    found = []
    for text in " | ".join(tables).split(" | "):
        words = text.replace("+", " ").split()
        extra = tuple(w.strip("()") for w in words if w.startswith("("))
        found.append(Shape(tuple(w for w in words if not w.startswith("(")), extra))
    return tuple(found)


PROMPTED = (
    "prompt + response | prompt + completion | prompt + output",
    "instruction (input) + output | instruction (input) + response",
    "instruction (input) + completion | input + output | input + response | question + response",
)
CONVERSATIONS = "messages | conversations"
PAIRS = (
    "prompt + chosen + rejected | instruction (input) + chosen + rejected",
    "input + chosen + rejected | question + chosen + rejected | chosen + rejected",
)

FIRST_ERROR_ROLES = ("first_error_index", "first_error_number")
"""Roles of the first wrong step, counted from 0 or from 1."""

QUESTIONS = ("prompt", "question", "instruction", "input", "query", "problem", "context_messages")
"""Roles of a prompt in the forms that have many of them."""

DEMONSTRATIONS = _shapes(*PROMPTED, CONVERSATIONS)
OTHER_DEMONSTRATIONS = _shapes(
    "question + answer | problem + solution | query + response | user + assistant | tree",
    "context_messages + response | context_messages + completion",
)
TEXTS = _shapes("text | input")
PREFERENCES = _shapes(*PAIRS)
PROMPTS = _shapes("prompt")
OTHER_PROMPTS = _shapes(CONVERSATIONS, "instruction (input) | input | question | context_messages")
MORE_PROMPTS = _shapes("user | query | problem | tree")
SOLUTIONS = _shapes(
    "prompt + completions + labels | prompt + steps + step_labels | prompt + steps + labels",
    "input + value",
)
FIRST_ERRORS = tuple(
    Shape(
        roles,
        family=f"{'/'.join(QUESTIONS)} + steps/completions + {'/'.join(FIRST_ERROR_ROLES)}",
    )
    for roles in product(QUESTIONS, ("steps", "completions"), FIRST_ERROR_ROLES)
)
JUDGED_PAIRS = tuple(
    Shape(
        (*prompt, "first", "second", verdict),
        ("input", "second_wins") if prompt == ("instruction",) else ("second_wins",),
        family=f"{'/'.join(QUESTIONS)} + first + second + {'/'.join(VERDICTS)}",
    )
    for prompt in (*((role,) for role in QUESTIONS), ())
    for verdict in VERDICTS
)
TREES = _shapes("tree")


def ratings(*verdicts: str) -> tuple[Shape, ...]:
    """Return the shapes of rated responses; the rating is in one of the columns `verdicts`."""
    return _rated(DEMONSTRATIONS, verdicts) + PREFERENCES


def other_ratings(*verdicts: str) -> tuple[Shape, ...]:
    """Return the shapes of rated responses that are used if none of `ratings` fits."""
    rated = [shape for shape in OTHER_DEMONSTRATIONS if "tree" not in shape.needs]
    return _rated(rated, verdicts) + JUDGED_PAIRS


def _rated(shapes: Sequence[Shape], verdicts: Sequence[str]) -> tuple[Shape, ...]:
    return tuple(
        Shape((*shape.needs, verdict), shape.may_have, f"{shape} + {'/'.join(verdicts)}")
        for shape in shapes
        for verdict in verdicts
    )


def recognise(
    tiers: Sequence[Sequence[Shape]],
    available: Sequence[str],
    mapped: Sequence[str],
    where: str,
    kind: str,
) -> Shape:
    """Find the one shape of a table.

    Within a tier, a shape that uses more columns has precedence over a shape that uses a subset of
    them. A shape must use every role of its tier and of earlier ones that is mapped explicitly. The
    tier whose shapes use most mapped roles is taken; of several, the first one.

    Args:
        tiers: groups of the known shapes; the common ones first.
        available: roles and other columns of the table.
        mapped: roles that the config maps.
        where: the table, for error messages.
        kind: the expected kind of rows, for error messages.

    Raises:
        DataError: if no shape fits, with the columns and the known shapes; if several fit, with
            these shapes.
    """
    fitting: list[list[Shape]] = []
    roles: set[str] = set()
    for tier in tiers:
        roles |= {role for shape in tier for role in (*shape.needs, *shape.may_have)}
        fitting.append(_fitting(tier, available, roles & set(mapped)))
    best = max(fitting, key=lambda fits: max((len(_mapped(s, mapped)) for s in fits), default=-1))
    if len(best) == 1:
        return best[0]
    if not best:
        known = dict.fromkeys(shape.family or str(shape) for tier in tiers for shape in tier)
        raise DataError(
            f"{where} cannot be read as {kind}: its columns are {', '.join(available)}; "
            f"expected one of: {'; '.join(known)}. "
            "Map other names with `columns: {<role>: <column>}`"
        )
    raise DataError(
        f"{where} could be read as {kind} in {len(best)} ways: {'; '.join(map(str, best))}. "
        f"Choose one of them, e.g. with `columns: {_mapping(best[0], best[1])}`"
    )


def _fitting(tier: Sequence[Shape], available: Sequence[str], wanted: set[str]) -> list[Shape]:
    """Return the shapes of a tier that fit, without those that use a subset of another's roles."""
    fits = [
        shape
        for shape in tier
        if set(shape.needs) <= set(available) and wanted <= shape.used(available)
    ]
    return [s for s in fits if not any(s.used(available) < o.used(available) for o in fits)]


def _mapped(shape: Shape, mapped: Sequence[str]) -> set[str]:
    return {*shape.needs, *shape.may_have} & set(mapped)


def _mapping(shape: Shape, other: Shape) -> str:
    own = [column for column in shape.needs if column not in other.needs] or list(shape.needs)
    return "{" + ", ".join(f"{column}: {column}" for column in own) + "}"


def by_role(columns: Mapping[str, str], found: Sequence[str], where: str) -> dict[str, str]:
    """Return role -> column of a table: the mapped roles, and all other columns by their own names.

    Columns that a format joins keep their own roles, too.

    Raises:
        DataError: if a mapped column does not exist.
    """
    for role, mapped in columns.items():
        for column in names_in(mapped):
            if column not in found:
                is_joined = (
                    f"the format '{mapped}' joins for" if column != mapped else "`columns` maps to"
                )
                raise DataError(
                    f"{where}: there is no field '{column}', which {is_joined} '{role}' "
                    f"(found: {', '.join(found)})"
                )
    taken = set(columns.values())
    own = {c: c for c in found if c not in taken and c not in columns}
    return {**own, **columns}
