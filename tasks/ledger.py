"""The promotion ledger: every decision of the gate; only an entry in it changes the champion.

MLflow's aliases have no compare-and-set, so one of two promotions could overwrite the other without
an error. But MLflow numbers model versions in the order of arrival. So each promotion of
`tiny.policy` is a version of `tiny.policy.promotions` with the number of the entry that it was
based on, and

    an entry is valid if and only if its `based_on` is the number of the last valid entry before it,
    and its `attempt` is not below its place among the attempts on the same match.

Of several entries based on the same one only the first is valid, for every reader. The champion is
the target of the last valid entry; `heal` sets the aliases `champion` and `previous` to match it.

A refusal is an entry too. It changes no champion, but it counts as an attempt: the gate is the
stricter, the more policies were judged against one opponent on the same prompts (`tasks.gate`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from stages.runtime.stage_key import digest_of
from stages.safe_text import shown
from tasks.attempts import Attempts, Match, match_of
from tasks.gate import Verdict, as_table
from tasks.registry import Registry
from tasks.versions import Entry, verify
from training_core.errors import ConfigError, ConflictError

REFUSED = "refused"
"""The `verdict` of an entry that changes nothing."""


class Decision(BaseModel):
    """What the gate decided about a version, and on which evidence.

    Attributes:
        based_on: number of the last valid entry when the evidence was gathered, or 0.
        evidence: the gate's verdict on the version, e.g. against the champion of `based_on`.
        match: what the verdict is about.
        who: name of the person who decides.
        why: reason for people.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    based_on: int
    evidence: Verdict
    match: Match
    who: str
    why: str


class Promotion(BaseModel):
    """A valid entry.

    Attributes:
        number: number of the entry in the ledger.
        decision: digest of the decision; the same decision sent twice counts once.
        target: number of the version that became champion.
        based_on: number of the entry that was the last valid one; 0 for the first.
        verdict: `passed` or `rollback`.
        evidence: the gate's verdict with its checks; empty for a rollback.
        decided_by: name of the person, not verified.
        reason: reason for people.
        at: Unix time.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    number: int
    decision: str
    target: int
    based_on: int
    verdict: str
    evidence: dict[str, object]
    decided_by: str
    reason: str
    at: float


def fold(entries: Iterable[Entry]) -> list[Promotion]:
    """Return the valid entries, oldest first.

    Args:
        entries: of one ledger, in the order of their numbers.
    """
    valid: list[Promotion] = []
    attempts = Attempts()
    for entry in entries:
        place = attempts.place_of(match_of(entry))
        is_current = int(entry.tags["based_on"]) == (valid[-1].number if valid else 0)
        is_strict = int(entry.tags.get("attempt", "0")) >= place
        if entry.tags["verdict"] != REFUSED and is_current and is_strict:
            fields = {**entry.tags, "evidence": json.loads(entry.tags["evidence"])}
            valid.append(Promotion(number=entry.number, at=entry.at, **fields))
    return valid


def history(registry: Registry, name: str) -> list[Promotion]:
    """Return the valid promotions of a registered model, oldest first."""
    return fold(registry.models.entries(_ledger_of(name)))


def champion(registry: Registry, name: str) -> Promotion | None:
    """Return the last valid promotion; None before the first."""
    promotions = history(registry, name)
    return promotions[-1] if promotions else None


def decisions_on(registry: Registry, name: str, target: int) -> list[Entry]:
    """Return what was decided about a version, oldest first: valid promotions, and refusals."""
    entries = registry.models.entries(_ledger_of(name))
    valid = {promotion.number for promotion in fold(entries)}
    return [
        entry
        for entry in entries
        if entry.tags["target"] == str(target)
        and (entry.tags["verdict"] == REFUSED or entry.number in valid)
    ]


def attempt_number(registry: Registry, name: str, match: Match) -> int:
    """Return the number of an attempt, from 1: its place in the ledger, or else the next one."""
    return Attempts(registry.models.entries(_ledger_of(name))).place_of(match)


def promote(registry: Registry, name: str, target: int, decision: Decision) -> Promotion:
    """Make a version the champion.

    After an interruption, call it again with the same arguments: a decision counts once.

    Args:
        registry: holds the ledger.
        name: the registered model, e.g. `tiny.policy`.
        target: number of the version.
        decision: of the gate, which passed.

    Raises:
        ConflictError: if the champion has changed since `based_on`, or another candidate was judged
            on the same match meanwhile. Judge again.
        ConfigError: if the gate did not pass, or there is no such version.
        IntegrityError: if the version's files differ from its manifest.
        TransientError: if MLflow cannot be reached.
    """
    if not decision.evidence.passed:
        found = decision.evidence.failed()
        raise ConfigError(f"the gate refused {name}/{target}: expected {found}")
    promotion = _decide(registry, name, _judged_tags(target, decision))
    registry.models.note_decision(name, target, _note(_judged_tags(target, decision)))
    return promotion


def refuse(registry: Registry, name: str, target: int, decision: Decision) -> None:
    """Record that the gate refused a version; the champion stays.

    Args:
        registry: holds the ledger.
        name: the registered model, e.g. `tiny.policy`.
        target: number of the version.
        decision: of the gate, which did not pass.

    Raises:
        ConfigError: if there is no such version.
        TransientError: if MLflow cannot be reached.
    """
    tags = _judged_tags(target, decision)
    digest = digest_of(tags)
    entries = registry.models.entries(_ledger_of(name))
    if all(entry.tags.get("decision") != digest for entry in entries):
        _append(registry, name, tags, digest)
    registry.models.note_decision(name, target, _note(tags))


def rollback(
    registry: Registry, name: str, target: int, *, based_on: int, who: str, why: str
) -> Promotion:
    """Make a former champion the champion again, by a new entry.

    Args:
        registry: holds the ledger.
        name: the registered model.
        target: number of the version.
        based_on: number of the last valid entry.
        who: name of the person who decides.
        why: reason for people.

    Raises:
        ConfigError: if the target was never champion.
        ConflictError: see `promote`, which also describes other errors.
    """
    past = sorted({promotion.target for promotion in history(registry, name)})
    if target not in past:
        raise ConfigError(f"expected a version of {name} that was champion {past}, found {target}")
    tags = _decision_tags(target, based_on, who, why) | {"verdict": "rollback", "evidence": "{}"}
    promotion = _decide(registry, name, tags)
    registry.models.note_decision(name, target, _note(tags))
    return promotion


def heal(registry: Registry, name: str) -> None:
    """Set the aliases `champion` and `previous` to the versions in the ledger."""

    def wanted() -> dict[str, int | None]:
        promotions = history(registry, name)
        return {"champion": _champion_target(promotions), "previous": _previous_target(promotions)}

    registry.models.hold_aliases(name, wanted)


def _ledger_of(name: str) -> str:
    return f"{name}.promotions"


def _decide(registry: Registry, name: str, tags: Mapping[str, str]) -> Promotion:
    decision = digest_of(tags)
    before = history(registry, name)
    if _made(before, decision) is None:
        if int(tags["based_on"]) != (before[-1].number if before else 0):
            raise _conflict(name, tags, before)
        verify(registry.store, registry.models.resolve(f"models:/{name}/{tags['target']}"))
        _append(registry, name, tags, decision)
    heal(registry, name)
    after = history(registry, name)
    made = _made(after, decision)
    if made is None:
        raise _conflict(name, tags, after)
    return made


def _append(registry: Registry, name: str, tags: Mapping[str, str], decision: str) -> None:
    ref = registry.models.resolve(f"models:/{name}/{tags['target']}")
    note = f"`{name}/{tags['target']}`: {_note(tags)}"
    registry.models.append(_ledger_of(name), ref.uri, {**tags, "decision": decision}, note)


def _note(tags: Mapping[str, str]) -> str:
    """Describe a decision, as Markdown."""
    said = {"passed": "promoted to champion", "rollback": "made champion again by a rollback"}
    what = said.get(tags["verdict"], "refused, it stays a candidate")
    why = f": {shown(tags['reason'])}" if tags["reason"] else ""
    head = f"{what.capitalize()}. Decided by {shown(tags['decided_by'])}{why}."
    if tags["verdict"] == "rollback":
        return head
    return f"{head}\n\n{as_table(Verdict.model_validate_json(tags['evidence']))}"


def _decision_tags(target: int, based_on: int, who: str, why: str) -> dict[str, str]:
    return {
        "target": str(target),
        "based_on": str(based_on),
        "decided_by": who,
        "reason": why,
    }


def _judged_tags(target: int, decision: Decision) -> dict[str, str]:
    evidence = decision.evidence
    return {
        **_decision_tags(target, decision.based_on, decision.who, decision.why),
        "verdict": "passed" if evidence.passed else REFUSED,
        "evidence": evidence.model_dump_json(),
        "attempt": str(evidence.attempt),
        **decision.match.model_dump(),
    }


def _made(promotions: list[Promotion], decision: str) -> Promotion | None:
    return next((p for p in promotions if p.decision == decision), None)


def _conflict(name: str, tags: Mapping[str, str], promotions: list[Promotion]) -> ConflictError:
    last = promotions[-1] if promotions else None
    found = f"{last.number} ({last.target}, by {last.decided_by})" if last else "an empty ledger"
    return ConflictError(
        f"{name}: expected entry {tags['based_on']} to be the last promotion, found {found}, or "
        f"another candidate was judged on the same prompts meanwhile; judge version "
        f"{tags['target']} against the champion of today"
    )


def _champion_target(promotions: list[Promotion]) -> int | None:
    return promotions[-1].target if promotions else None


def _previous_target(promotions: list[Promotion]) -> int | None:
    now = _champion_target(promotions)
    return next((p.target for p in reversed(promotions) if p.target != now), None)
