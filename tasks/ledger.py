"""The promotion ledger: every decision of the gate; only an entry in it changes the champion.

MLflow's aliases have no compare-and-set, so one of two promotions could overwrite the other without
an error. But MLflow numbers model versions in the order of arrival. So each promotion of
`tiny.policy` is a version of `tiny.policy.promotions` with the number of the entry that it was
based on, and

    an entry is valid if and only if its `based_on` is the number of the last valid entry before it,
    and its `attempt` is not below its place among the attempts on the same match.

Of several entries based on the same one only the first is valid, for every reader. The champion is
the target of the last valid entry; `heal` sets the aliases `champion` and `previous` to match it.

A version that was held or rejected has an entry too. It changes no champion, but it counts as an
attempt: the gate is the stricter, the more policies were judged against one opponent on the same
prompts (`tasks.gate`). `tasks.decisions` lists the verdicts of entries.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from stages.runtime.stage_key import digest_of
from tasks.attempts import Attempts, Match, match_of
from tasks.decisions import CHANGING, Decision, hand_tags, note_of, require_person
from tasks.registry import Registry
from tasks.versions import Entry, verify
from training_core.errors import ConfigError, ConflictError


class Promotion(BaseModel):
    """A valid entry.

    Attributes:
        number: number of the entry in the ledger.
        decision: digest of the decision; the same decision sent twice counts once.
        target: number of the version that became champion.
        based_on: number of the entry that was the last valid one; 0 for the first.
        verdict: one of `tasks.decisions.CHANGING`.
        evidence: the gate's verdict with its checks; empty for a decision by hand.
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
        if entry.tags["verdict"] in CHANGING and is_current and is_strict:
            known = {
                name: tag for name, tag in entry.tags.items() if name in Promotion.model_fields
            }
            fields = {**known, "evidence": json.loads(entry.tags["evidence"])}
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
    """Return what was decided about a version, oldest first, without entries that are not valid."""
    entries = registry.models.entries(_ledger_of(name))
    valid = {promotion.number for promotion in fold(entries)}
    return [
        entry
        for entry in entries
        if entry.tags["target"] == str(target)
        and (entry.tags["verdict"] not in CHANGING or entry.number in valid)
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
        decision: that the gate passed it, and that nobody objected.

    Raises:
        ConflictError: if the champion has changed since `based_on`, or another candidate was judged
            on the same match meanwhile. Judge again.
        ConfigError: if the decision is another one, or there is no such version.
        IntegrityError: if the version's files differ from its manifest.
        TransientError: if MLflow cannot be reached.
    """
    if decision.verdict not in CHANGING:
        found = decision.evidence.failed() or f"approval, found '{decision.why}'"
        raise ConfigError(f"the gate refused {name}/{target}: expected {found}")
    return _decide(registry, name, decision.tags(target))


def refuse(registry: Registry, name: str, target: int, decision: Decision) -> None:
    """Record that a version was held or rejected; the champion stays.

    Args:
        registry: holds the ledger.
        name: the registered model, e.g. `tiny.policy`.
        target: number of the version.
        decision: that the gate did not pass it, or that a person objected.

    Raises:
        ConfigError: if there is no such version.
        TransientError: if MLflow cannot be reached.
    """
    tags = decision.tags(target)
    digest = digest_of(tags)
    entries = registry.models.entries(_ledger_of(name))
    if all(entry.tags.get("decision") != digest for entry in entries):
        _append(registry, name, tags, digest)
    registry.models.note_decision(name, target, tags["verdict"], note_of(tags))


def force(
    registry: Registry, name: str, target: int, *, based_on: int, who: str, why: str
) -> Promotion:
    """Make a version the champion without the gate, by an entry that says so.

    Args:
        registry: holds the ledger.
        name: the registered model.
        target: number of the version.
        based_on: number of the last valid entry.
        who: name of the person who decides.
        why: reason for people.

    Raises:
        ConfigError: if the name or the reason is blank, or there is no such version.
        ConflictError: see `promote`, which also describes other errors.
    """
    require_person("a forced promotion", who, why)
    return _decide(registry, name, _by_hand("forced", target, based_on, who, why))


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
    return _decide(registry, name, _by_hand("rollback", target, based_on, who, why))


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
    registry.models.note_decision(name, made.target, tags["verdict"], note_of(tags))
    return made


def _append(registry: Registry, name: str, tags: Mapping[str, str], decision: str) -> None:
    ref = registry.models.resolve(f"models:/{name}/{tags['target']}")
    note = f"`{name}/{tags['target']}`: {note_of(tags)}"
    registry.models.append(_ledger_of(name), ref.uri, {**tags, "decision": decision}, note)


def _by_hand(verdict: str, target: int, based_on: int, who: str, why: str) -> dict[str, str]:
    return hand_tags(target, based_on, who, why) | {"verdict": verdict, "evidence": "{}"}


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
