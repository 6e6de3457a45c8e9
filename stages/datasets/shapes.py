"""The columns that each kind of row can have (shapes), and how a table's shape is recognised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from training_core.errors import DataError


@dataclass(frozen=True)
class Shape:
    """The columns that a table of this shape must have, and those that it may have."""

    needs: tuple[str, ...]
    may_have: tuple[str, ...] = ()

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

DEMONSTRATIONS = _shapes(*PROMPTED, CONVERSATIONS)
TEXTS = _shapes("text | input")
PREFERENCES = _shapes(*PAIRS)
PROMPTS = _shapes("prompt")
OTHER_PROMPTS = _shapes(CONVERSATIONS, "instruction (input) | input | question | context_messages")
SOLUTIONS = _shapes(
    "prompt + completions + labels | prompt + steps + step_labels | prompt + steps + labels",
    "input + value",
)


def ratings(*verdicts: str) -> tuple[Shape, ...]:
    """Return the shapes of rated responses; the rating is in one of the columns `verdicts`."""
    judged = tuple(
        Shape((*shape.needs, verdict), shape.may_have)
        for shape in DEMONSTRATIONS
        for verdict in verdicts
    )
    return judged + PREFERENCES


def recognise(
    shapes: Sequence[Shape], available: Sequence[str], mapped: Sequence[str], where: str, kind: str
) -> Shape:
    """Find the one shape of a table.

    A shape that uses more columns has precedence over a shape that uses a subset of them. A shape
    must use every role that is mapped explicitly.

    Args:
        shapes: the known shapes.
        available: roles and other columns of the table.
        mapped: roles that the config maps.
        where: the table, for error messages.
        kind: the expected kind of rows, for error messages.

    Raises:
        DataError: if no shape fits, with the columns and the known shapes; if several fit, with
            these shapes.
    """
    known = {role for shape in shapes for role in (*shape.needs, *shape.may_have)}
    wanted = known & set(mapped)
    fits = [
        shape
        for shape in shapes
        if set(shape.needs) <= set(available) and wanted <= shape.used(available)
    ]
    best = [s for s in fits if not any(s.used(available) < o.used(available) for o in fits)]
    if len(best) == 1:
        return best[0]
    if not best:
        raise DataError(
            f"{where} cannot be read as {kind}: its columns are {', '.join(available)}; "
            f"expected one of: {'; '.join(map(str, shapes))}. "
            "Map other names with `columns: {<role>: <column>}`"
        )
    raise DataError(
        f"{where} could be read as {kind} in {len(best)} ways: {'; '.join(map(str, best))}. "
        f"Choose one of them, e.g. with `columns: {_mapping(best[0], best[1])}`"
    )


def _mapping(shape: Shape, other: Shape) -> str:
    own = [column for column in shape.needs if column not in other.needs] or list(shape.needs)
    return "{" + ", ".join(f"{column}: {column}" for column in own) + "}"


def by_role(columns: Mapping[str, str], found: Sequence[str], where: str) -> dict[str, str]:
    """Return role -> column of a table: the mapped roles, and all other columns by their own names.

    Raises:
        DataError: if a mapped column does not exist.
    """
    for role, column in columns.items():
        if column not in found:
            raise DataError(
                f"{where}: there is no field '{column}', which `columns` maps to '{role}' "
                f"(found: {', '.join(found)})"
            )
    taken = set(columns.values())
    own = {c: c for c in found if c not in taken and c not in columns}
    return {**own, **columns}
