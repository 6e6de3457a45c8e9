"""Decisions about a model version: what they say, and how the promotion ledger keeps them.

An entry of the ledger has one of these verdicts:

    promote    the gate passed the version, and a person approved it where that is asked for
    hold       the evidence was not enough, or nobody answered in time
    reject     the evidence was against the version, or a person was
    forced     a person made it champion without the gate
    rollback   a person made a former champion champion again

Entries of earlier releases say `passed` and `refused` instead of the first three.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from stages.safe_text import shown
from tasks.attempts import Match
from tasks.gate import GateOutcome, Verdict, as_table
from training_core.errors import ConfigError

CHANGING = ("promote", "forced", "rollback", "passed")
"""Verdicts of entries that change the champion; an entry with any other one changes nothing."""

BY_HAND = ("forced", "rollback")
"""Verdicts without evidence of the gate."""

SAID: Mapping[str, str] = {
    "promote": "promoted to champion",
    "passed": "promoted to champion",
    "hold": "held: it stays a candidate, since the evidence is not enough",
    "reject": "rejected: it stays a candidate, and the evidence is against it",
    "refused": "refused: it stays a candidate",
    "forced": "made champion by force, without the gate",
    "rollback": "made champion again by a rollback",
}
"""Verdict of an entry -> what it says for people."""

RELATIONS: Mapping[GateOutcome, str] = {
    "promote": "beats",
    "hold": "is not proven better than",
    "reject": "does not beat",
}
"""What the gate says -> what it means for a candidate and its opponent."""

ApprovalAnswer = Literal["approve", "hold", "reject"]


class Decision(BaseModel):
    """What was decided about a version, and on which evidence.

    Attributes:
        based_on: number of the last valid entry when the evidence was gathered, or 0.
        evidence: the gate's verdict on the version, e.g. against the champion of `based_on`.
        match: what the verdict is about.
        who: name of the person who decides, or of the flow.
        why: reason for people.
        answer: of a person whose approval was asked for, after the gate had passed the version;
            None if nobody was asked.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    based_on: int
    evidence: Verdict
    match: Match
    who: str
    why: str
    answer: ApprovalAnswer | None = None

    @property
    def verdict(self) -> str:
        """The verdict of its entry: that of the gate, unless a person decided otherwise."""
        if self.evidence.passed and self.answer in ("hold", "reject"):
            return self.answer
        return self.evidence.outcome

    def tags(self, target: int) -> dict[str, str]:
        """Return the tags of its entry, for the version with the number `target`."""
        answer = {"answer": self.answer} if self.answer else {}
        return {
            **hand_tags(target, self.based_on, self.who, self.why),
            **answer,
            "verdict": self.verdict,
            "evidence": self.evidence.model_dump_json(),
            "attempt": str(self.evidence.attempt),
            **self.match.model_dump(),
        }


def hand_tags(target: int, based_on: int, who: str, why: str) -> dict[str, str]:
    """Return the tags that every entry has but `verdict` and `evidence`."""
    return {
        "target": str(target),
        "based_on": str(based_on),
        "decided_by": who,
        "reason": why,
    }


def note_of(tags: Mapping[str, str]) -> str:
    """Describe an entry by its tags, as Markdown."""
    what = SAID.get(tags["verdict"], tags["verdict"]).capitalize()
    if tags.get("answer") and tags["answer"] != "approve":  # the gate had passed it
        what = f"Not approved ({tags['verdict']}): it stays a candidate"
    why = f": {shown(tags['reason'])}" if tags["reason"] else ""
    head = f"{what}. Decided by {shown(tags['decided_by'])}{why}."
    if tags["verdict"] in BY_HAND:
        return head
    return f"{head}\n\n{as_table(Verdict.model_validate_json(tags['evidence']))}"


def require_person(what: str, who: str, why: str) -> None:
    """Check that a decision by hand has a name and a reason.

    Raises:
        ConfigError: if one of them is blank.
    """
    missing = [name for name, text in (("name", who), ("reason", why)) if not text.strip()]
    if missing:
        raise ConfigError(
            f"{what} needs the name of a person and a reason, which the ledger keeps; found no "
            f"{' and no '.join(missing)}"
        )
