"""Attempts to become champion: what a candidate was judged on, and which attempt it was."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from tasks.versions import Entry


class Match(BaseModel):
    """What a candidate was judged against, and on which evidence.

    Attributes:
        opponent: digest of the champion's files; `none` while there is no champion.
        prompts: digest of the evaluation's prompts.
        evaluation: digest of the evaluation's result. The same result is the same attempt, however
            often it is judged.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    opponent: str
    prompts: str
    evaluation: str


class Attempts:
    """Counts the attempts on each match, in the order of a ledger."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._evaluations: dict[tuple[str, str], list[str]] = {}
        for entry in entries:
            self.place_of(match_of(entry))

    def place_of(self, match: Match | None) -> int:
        """Return the place of an attempt, from 1; a new one gets the next place. 0 for None."""
        if match is None:
            return 0
        judged = self._evaluations.setdefault((match.opponent, match.prompts), [])
        if match.evaluation not in judged:
            judged.append(match.evaluation)
        return judged.index(match.evaluation) + 1


def match_of(entry: Entry) -> Match | None:
    """Return what an entry was judged on; None for a rollback."""
    fields = {name: entry.tags.get(name) for name in Match.model_fields}
    return None if None in fields.values() else Match.model_validate(fields)
