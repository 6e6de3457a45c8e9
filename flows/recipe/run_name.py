"""Names of flow runs: what is special about a run, unless a person has typed a name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from itertools import accumulate
from pathlib import Path

import prefect
from coolname.data import config as word_lists
from prefect.runtime import flow_run

from stages.configs.dotted_fields import dotted_fields

MAX_CHANGES, MAX_LENGTH = 3, 120

# The form makes up `sigma4-canis-majoris-warp`, and in one of nine cases no number: `sigma-vega`.
_GREEK = (
    "(alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|omicron|pi|rho|"
    "sigma|tau|upsilon|phi|chi|psi|omega)"
)
_STAR = re.compile(_GREEK + "[0-9]+(-[a-z]+){1,3}")
_STAR_WITHOUT_NUMBER = re.compile(_GREEK + "-([a-z'-]+)")
_LIST_OF_STARS = re.compile(r"`(andromedae(?:\.[a-z'-]*){20,})`")


def name_from(*fields: str) -> Callable[[], str]:
    """Return a function for `@flow(flow_run_name=…)`, e.g. of `tiny · ppo.kl_coef=0.1`.

    Args:
        fields: parameters of the flow that are shown first, joined by spaces.
    """

    def name() -> str:
        typed = flow_run.name
        if typed and not is_generated(typed):
            return typed
        return describe(flow_run.parameters, fields)

    return name


def describe(parameters: Mapping[str, object], fields: tuple[str, ...]) -> str:
    """Return a name made of the given fields, the changes of the preset and the forced steps."""
    overrides = parameters.get("overrides")
    fields_of_form = dotted_fields(overrides) if isinstance(overrides, Mapping) else ()
    # {} is what a form sends for a block that was opened and left empty
    changes = [f"{key}={_text(value)}" for key, value in fields_of_form if value != {}]
    changes += _lines(parameters.get("changes"))
    shown = changes[:MAX_CHANGES]
    if len(changes) > MAX_CHANGES:
        shown.append(f"{len(changes) - MAX_CHANGES} more")
    force = parameters.get("force")
    if force:
        shown.append(" ".join(["force", ",".join(_lines(force))]).strip())
    name = " · ".join([" ".join(str(parameters[field]) for field in fields), *shown])
    return name if len(name) <= MAX_LENGTH else name[: MAX_LENGTH - 1] + "…"


def is_generated(name: str) -> bool:
    """Return whether Prefect made up this name, e.g. `brave-otter`, or `sigma4-vega` in its form.

    A Greek letter without a number may also be a person's, e.g. `beta-test`; then the word after it
    must be one of the form's own.
    """
    first, _, second = name.partition("-")
    if {first, second} <= _vocabulary() or _STAR.fullmatch(name):
        return True
    plain = _STAR_WITHOUT_NUMBER.fullmatch(name)
    if plain is None:
        return False
    words = accumulate(plain[2].split("-"), "{}-{}".format)
    return any(word in _stars() for word in words)


@cache
def _vocabulary() -> frozenset[str]:
    return frozenset(word for words in word_lists.values() for word in words.get("words", ()))


@cache
def _stars() -> frozenset[str]:
    """Return the words that Prefect's form puts behind a Greek letter; none without its pages."""
    scripts = Path(prefect.__ui_static_path__).glob("assets/*.js")
    texts = (script.read_text(encoding="utf-8") for script in scripts)
    lists = (found[1] for text in texts for found in _LIST_OF_STARS.finditer(text))
    return frozenset(word for words in lists for word in words.split(".") if word)


def _lines(value: object) -> list[str]:
    """Return the lines that are not empty; none for what is neither lines nor a text."""
    lines = value.splitlines() if isinstance(value, str) else value
    return [str(line) for line in lines if line] if isinstance(lines, list | tuple) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
