"""Rows of the café in the columns of a dataset that is not at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stages.configs.column_format import names_in
from stages.configs.data_config import FileDataConfig, HubDataConfig
from stages.configs.stage_record import RowsName
from stages.data_check.recognition import KINDS
from stages.datasets.prompt_columns import PROMPT_ROLES
from stages.datasets.shapes import Shape
from training_core.data import cafe
from training_core.errors import ConfigError

CafePair = Mapping[str, Any]
"""A row of café pairs: prompt, chosen and rejected as messages."""


def _guest(pair: CafePair) -> str:
    return str(pair["prompt"][0]["content"])


def _answer(pair: CafePair, side: str = "chosen") -> str:
    return str(pair[side][0]["content"])


def _tree(pair: CafePair) -> object:
    replies = [
        {"role": "assistant", "text": _answer(pair, side), "rank": rank, "replies": []}
        for rank, side in enumerate(("chosen", "rejected"))
    ]
    return {"role": "prompter", "text": _guest(pair), "replies": replies}


VALUES: Mapping[str, Callable[[CafePair], object]] = {
    **dict.fromkeys(PROMPT_ROLES, _guest),
    **dict.fromkeys(("response", "completion", "output", "chosen", "first"), _answer),
    **dict.fromkeys(("answer", "solution", "assistant"), _answer),
    **dict.fromkeys(("messages", "conversations"), lambda pair: [*pair["prompt"], *pair["chosen"]]),
    **dict.fromkeys(("rejected", "second"), lambda pair: _answer(pair, "rejected")),
    "winner": lambda _: "first",
    "winner_index": lambda _: 0,
    **dict.fromkeys(("winner_number", "first_wins"), lambda _: 1),
    "second_wins": lambda _: 0,
    "tree": _tree,
    "text": lambda pair: f"{_guest(pair)} {_answer(pair)}",
    "label": lambda _: True,
    **dict.fromkeys(("completions", "steps"), lambda pair: [_answer(pair), "enjoy !"]),
    **dict.fromkeys(("labels", "step_labels"), lambda _: [True, False]),
    "first_error_index": lambda _: 1,
    "first_error_number": lambda _: 2,
    "system": lambda _: "please",
    **dict.fromkeys(("finished", "chosen_finished", "rejected_finished"), lambda _: True),
    "reward": lambda pair: cafe.true_reward(_guest(pair), _answer(pair)),
    "margin": lambda _: 1.0,
}
"""Role of a column -> its value, made from a pair of the café."""

GO_ALONG = frozenset(("answer", "solution"))
"""Roles of demonstrations that beside a prompt are columns for the reward, as unknown roles are."""


def stand_in_rows(
    source: FileDataConfig | HubDataConfig, kind: RowsName, *, size: int, seed: int
) -> list[dict[str, Any]]:
    """Make rows with the columns that `source` maps, or else of the kind's first shape.

    Raises:
        ConfigError: if no shape of this kind has the mapped roles.
    """
    columns = dict(source.columns)
    roles = sorted({*_shape(source, kind).needs, *columns})
    pairs = cafe.rows("pairs", split="train", size=size, seed=seed)
    return [
        {
            column: VALUES.get(role, _answer)(pair)
            for role in roles
            for column in names_in(columns.get(role, role))
        }
        for pair in pairs
    ]


def _shape(source: FileDataConfig | HubDataConfig, kind: RowsName) -> Shape:
    wanted = set(source.columns) - set(KINDS[kind].extras)
    if KINDS[kind].keeps_columns:
        wanted = wanted & set(VALUES) - GO_ALONG
    for tier in KINDS[kind].tiers:
        for shape in tier:
            if wanted <= {*shape.needs, *shape.may_have} and {*shape.needs, *wanted} <= set(VALUES):
                return shape
    raise ConfigError(
        f"columns: expected roles of {KINDS[kind].name}, found {', '.join(sorted(wanted))}; "
        "docs/data.md has the table of roles"
    )
