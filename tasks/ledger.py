"""The promotion ledger: only a new entry in it changes the champion.

MLflow's aliases have no compare-and-set, so one of two promotions could overwrite the other without
an error. But MLflow numbers model versions in the order of arrival. So each promotion of
`tiny.policy` is a version of `tiny.policy.promotions` with the number of the entry that it was
based on, and

    an entry is valid if and only if its `based_on` is the number of the last valid entry before it.

Of several entries based on the same one only the first is valid, for every reader. The champion is
the target of the last valid entry; `heal` sets the aliases `champion` and `previous` to match it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from stages.runtime.stage_key import digest_of
from tasks.gate import Verdict
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
    for entry in entries:
        if int(entry.tags["based_on"]) == (valid[-1].number if valid else 0):
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


def promote(
    registry: Registry,
    name: str,
    target: int,
    *,
    based_on: int,
    evidence: Verdict,
    who: str,
    why: str,
) -> Promotion:
    """Make a version the champion.

    After an interruption, call it again with the same arguments: a decision counts once.

    Args:
        registry: holds the ledger.
        name: the registered model, e.g. `tiny.policy`.
        target: number of the version.
        based_on: number of the last valid entry when the evidence was gathered, or 0.
        evidence: the gate's verdict on the target against the champion of `based_on`.
        who: name of the person who decides.
        why: reason for people.

    Raises:
        ConflictError: if the champion has changed since `based_on`; nothing is written. Evaluate
            against the new champion.
        ConfigError: if the gate did not pass, or there is no such version.
        IntegrityError: if the version's files differ from its manifest.
        TransientError: if MLflow cannot be reached.
    """
    if not evidence.passed:
        failed = [f"{c.name} {c.expected}, got {c.found}" for c in evidence.reasons if not c.passed]
        raise ConfigError(f"the gate refused {name}/{target}: expected {'; '.join(failed)}")
    tags = {
        "target": str(target),
        "based_on": str(based_on),
        "verdict": "passed",
        "evidence": evidence.model_dump_json(),
        "decided_by": who,
        "reason": why,
    }
    return _decide(registry, name, tags)


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
    tags = {
        "target": str(target),
        "based_on": str(based_on),
        "verdict": "rollback",
        "evidence": "{}",
        "decided_by": who,
        "reason": why,
    }
    return _decide(registry, name, tags)


def heal(registry: Registry, name: str) -> None:
    """Set the aliases `champion` and `previous` to the versions in the ledger."""
    registry.models.hold_alias(name, "champion", lambda: _champion_target(history(registry, name)))
    registry.models.hold_alias(name, "previous", lambda: _previous_target(history(registry, name)))


def _ledger_of(name: str) -> str:
    return f"{name}.promotions"


def _decide(registry: Registry, name: str, tags: Mapping[str, str]) -> Promotion:
    decision = digest_of(tags)
    before = history(registry, name)
    if _made(before, decision) is None:
        if int(tags["based_on"]) != (before[-1].number if before else 0):
            raise _conflict(name, tags, before)
        ref = registry.models.resolve(f"models:/{name}/{tags['target']}")
        verify(registry.store, ref)
        registry.models.append(_ledger_of(name), ref.uri, {**tags, "decision": decision})
    heal(registry, name)
    after = history(registry, name)
    made = _made(after, decision)
    if made is None:
        raise _conflict(name, tags, after)
    return made


def _made(promotions: list[Promotion], decision: str) -> Promotion | None:
    return next((p for p in promotions if p.decision == decision), None)


def _conflict(name: str, tags: Mapping[str, str], promotions: list[Promotion]) -> ConflictError:
    last = promotions[-1] if promotions else None
    found = f"{last.number} ({last.target}, by {last.decided_by})" if last else "an empty ledger"
    return ConflictError(
        f"{name}: expected entry {tags['based_on']} to be the last promotion, found {found}; "
        f"judge version {tags['target']} against the champion of today"
    )


def _champion_target(promotions: list[Promotion]) -> int | None:
    return promotions[-1].target if promotions else None


def _previous_target(promotions: list[Promotion]) -> int | None:
    now = _champion_target(promotions)
    return next((p.target for p in reversed(promotions) if p.target != now), None)
