from __future__ import annotations

import re
from pathlib import Path

import mlflow
import pytest
from real_services import run_together

from stages.runtime.store import Store
from tasks.attempts import Attempts, Match
from tasks.gate import GateConfig, Verdict, judge
from tasks.ledger import (
    Decision,
    attempt_number,
    champion,
    fold,
    heal,
    history,
    promote,
    refuse,
    rollback,
)
from tasks.registry import Registry
from tasks.versions import Entry
from training_core.errors import ConfigError, ConflictError, IntegrityError, TransientError

COUNTED = {"judged_prompts": 256.0, "judged_fraction": 1.0, "reward_gain": 0.1}
WON = judge({**COUNTED, "won_prompts": 200.0, "lost_prompts": 56.0}, GateConfig())
LOST = judge({**COUNTED, "won_prompts": 100.0, "lost_prompts": 156.0}, GateConfig())


def match(evaluation: str = "e1", opponent: str = "none") -> Match:
    return Match(opponent=opponent, prompts="heldout", evaluation=evaluation)


FIRST = match()


def decision(
    based_on: int, *, evidence: Verdict = WON, match: Match = FIRST, who: str = "ann", why: str = ""
) -> Decision:
    return Decision(based_on=based_on, evidence=evidence, match=match, who=who, why=why)


def entry(number: int, target: int, based_on: int, **tags: str) -> Entry:
    shared = {"target": str(target), "based_on": str(based_on), "verdict": "passed"}
    shared |= {"evidence": "{}", "decided_by": "ann", "reason": "", "decision": f"d{number}"}
    return Entry(number, shared | tags, at=float(number))


def judged_entry(number: int, based_on: int, attempt: int, on: Match, **tags: str) -> Entry:
    return entry(number, number, based_on, attempt=str(attempt), **on.model_dump(), **tags)


def manual_alias(registry: Registry, name: str, alias: str, version: int) -> None:
    client = mlflow.MlflowClient(registry.mlflow.tracking_uri, registry.mlflow.tracking_uri)
    client.set_registered_model_alias(name, alias, str(version))


@pytest.fixture
def name(registry, finish, lifecycle) -> str:
    """A registered model with versions 1, 2 and 3, none of them champion yet."""
    for seed in (1, 2, 3):
        registry.register(finish("dpo-1", seed=seed), lifecycle=lifecycle)
    return f"{lifecycle}.policy"


# ------------------------------------------------------------------- the fold, by hand


def test_an_empty_ledger_has_no_champion():
    assert fold([]) == []


def test_of_two_entries_with_one_base_the_first_is_valid():
    entries = [entry(1, target=7, based_on=0), entry(2, target=8, based_on=0)]

    assert [(p.number, p.target) for p in fold(entries)] == [(1, 7)]


def test_an_invalid_entry_is_no_base_for_another():
    # 2 lost to 1; 3 was based on 2 all the same; 4 is based on 1, the last valid one.
    entries = [entry(1, 7, 0), entry(2, 8, 0), entry(3, 9, 2), entry(4, 9, 1)]

    assert [p.number for p in fold(entries)] == [1, 4]


def test_a_refusal_changes_no_champion_and_is_no_base():
    refused = judged_entry(2, 1, 1, match(), verdict="refused")
    assert [p.number for p in fold([entry(1, 7, 0), refused, entry(3, 9, 2)])] == [1]
    assert [p.number for p in fold([entry(1, 7, 0), refused, entry(3, 9, 1)])] == [1, 3]


def test_an_entry_that_does_not_count_the_attempts_before_it_is_invalid():
    before = judged_entry(1, 0, 1, match("e1"), verdict="refused")
    # Two candidates were judged at the same time, both as the first attempt; e1 arrived first.
    lenient = judged_entry(2, 0, 1, match("e2"))
    assert fold([before, lenient]) == []
    # The same evaluation keeps its place: it is the second attempt, when it is judged again, too.
    again = judged_entry(3, 0, 2, match("e2"))
    assert [p.number for p in fold([before, lenient, again])] == [3]
    # Another opponent has attempts of its own.
    elsewhere = judged_entry(2, 0, 1, match("e2", opponent="other"))
    assert [p.number for p in fold([before, elsewhere])] == [2]


def test_the_same_evaluation_is_one_attempt_however_often_it_is_judged():
    entries = [
        judged_entry(1, 0, 1, match("e1"), verdict="refused"),
        judged_entry(2, 0, 1, match("e1"), verdict="refused"),
        judged_entry(3, 0, 2, match("e2"), verdict="refused"),
        entry(4, 9, 0, verdict="rollback"),
    ]
    assert Attempts(entries).place_of(match("e1")) == 1
    assert Attempts(entries).place_of(match("e3")) == 3
    assert Attempts(entries).place_of(match("e3", opponent="other")) == 1


# ------------------------------------------------------------------------- promotions


@pytest.mark.services
def test_a_promotion_moves_champion_and_previous(registry, name):
    first = promote(registry, name, 1, decision(0, why="first"))
    assert registry.models.aliases(name) == {"dpo-1": 3, "champion": 1}

    second = promote(registry, name, 3, decision(first.number, who="bo", why="won"))

    assert registry.models.aliases(name) == {"dpo-1": 3, "champion": 3, "previous": 1}
    assert champion(registry, name) == second
    assert history(registry, name) == [first, second]
    assert (second.target, second.based_on, second.verdict) == (3, first.number, "promote")
    assert (second.decided_by, second.reason) == ("bo", "won")
    assert Verdict.model_validate(second.evidence) == WON
    assert registry.models.resolve(f"models:/{name}@champion").version == 3


@pytest.mark.services
def test_a_promotion_judged_against_an_older_champion_is_a_conflict(registry, name):
    promote(registry, name, 1, decision(0))

    with pytest.raises(ConflictError, match=r"expected entry 0 .* found 1 .*ann"):
        promote(registry, name, 2, decision(0, who="bo"))

    assert registry.models.aliases(name)["champion"] == 1


@pytest.mark.services
def test_the_same_decision_sent_twice_counts_once(registry, name):
    first = promote(registry, name, 1, decision(0))
    again = promote(registry, name, 1, decision(0))

    assert again == first
    assert len(registry.models.entries(f"{name}.promotions")) == 1


@pytest.mark.services
def test_what_the_gate_refused_cannot_be_promoted(registry, name):
    with pytest.raises(ConfigError, match=r"expected win_rate_low > 0\.5, found 0\.3"):
        promote(registry, name, 1, decision(0, why="hope", evidence=LOST))

    assert champion(registry, name) is None


@pytest.mark.services
def test_a_refusal_is_an_entry_that_counts_and_moves_nothing(registry, name):
    def say_no(target: int, evaluation: str) -> None:
        on = match(evaluation)
        refuse(registry, name, target, decision(0, why="lost", evidence=LOST, match=on))

    assert attempt_number(registry, name, match("e1")) == 1
    say_no(1, "e1")
    say_no(1, "e1")  # a Retry of the same flow run
    say_no(2, "e2")

    assert history(registry, name) == []
    assert "champion" not in registry.models.aliases(name)
    ledger = registry.models.entries(f"{name}.promotions")
    assert [(e.tags["verdict"], e.tags["target"]) for e in ledger] == [
        ("reject", "1"),
        ("reject", "2"),
    ]
    assert Verdict.model_validate_json(ledger[0].tags["evidence"]) == LOST
    assert attempt_number(registry, name, match("e1")) == 1
    assert attempt_number(registry, name, match("e3")) == 3

    # Evidence of a first attempt is too lenient for the third one.
    with pytest.raises(ConflictError, match="another candidate was judged on the same prompts"):
        promote(registry, name, 3, decision(0, match=match("e3")))
    assert champion(registry, name) is None
    strict = WON.model_copy(update={"attempt": 3})
    promote(registry, name, 3, decision(0, evidence=strict, match=match("e3")))
    assert registry.models.aliases(name)["champion"] == 3


@pytest.mark.services
def test_a_version_with_a_flipped_byte_cannot_be_promoted(registry, name):
    weights = registry.models.resolve(f"models:/{name}/2").path / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.chmod(0o644)
    weights.write_bytes(data)

    with pytest.raises(IntegrityError, match=r"model\.safetensors: expected sha256"):
        promote(registry, name, 2, decision(0))

    assert registry.models.entries(f"{name}.promotions") == []


@pytest.mark.services
def test_a_rollback_is_an_entry(registry, name):
    first = promote(registry, name, 1, decision(0))
    second = promote(registry, name, 2, decision(first.number))

    third = rollback(registry, name, 1, based_on=second.number, who="bo", why="rude at night")

    assert [p.target for p in history(registry, name)] == [1, 2, 1]
    assert third.verdict == "rollback"
    assert registry.models.aliases(name) == {"dpo-1": 3, "champion": 1, "previous": 2}
    with pytest.raises(ConfigError, match=re.escape("champion [1, 2], found 3")):
        rollback(registry, name, 3, based_on=third.number, who="bo", why="")


@pytest.mark.services
def test_an_alias_that_was_moved_by_hand_heals(registry, name):
    manual_alias(registry, name, "champion", 2)
    heal(registry, name)
    assert registry.models.aliases(name) == {"dpo-1": 3}  # nothing was ever promoted

    promote(registry, name, 1, decision(0))
    manual_alias(registry, name, "champion", 3)
    heal(registry, name)
    assert registry.models.aliases(name) == {"dpo-1": 3, "champion": 1}


@pytest.mark.services
def test_a_promoter_that_died_before_the_alias_is_finished_by_its_retry(registry, name):
    promote(registry, name, 1, decision(0))
    manual_alias(registry, name, "champion", 2)  # as it stood before the entry was written

    promote(registry, name, 1, decision(0))

    assert registry.models.aliases(name)["champion"] == 1


@pytest.mark.services
def test_a_server_that_is_away_changes_nothing_and_says_so(store, own_server):
    registry = Registry(own_server.uri, store)

    with pytest.raises(TransientError, match=own_server.uri):
        promote(registry, "tiny.policy", 1, decision(0))


# ------------------------------------------------------------------------------- races

ROUNDS = 4


def promote_in_rounds(barrier, uri: str, root: Path, name: str, who: str) -> list[int]:
    """Promote once per round, all with the same base; return the numbers of what was won."""
    registry, won = Registry(uri, Store(root)), []
    for _ in range(ROUNDS):
        barrier.wait()
        last = champion(registry, name)
        based_on, target = (last.number, last.target % 3 + 1) if last else (0, 1)
        barrier.wait()
        try:
            made = promote(registry, name, target, decision(based_on, who=who, why="race"))
        except ConflictError:
            continue
        won.append(made.number)
    return won


@pytest.mark.services
def test_of_three_racing_promoters_one_wins_each_round_and_none_is_lost(registry, store, name):
    won = run_together(
        promote_in_rounds,
        [(registry.mlflow.tracking_uri, store.root, name, who) for who in ("ann", "bo", "cy")],
    )

    valid = history(registry, name)
    # One winner in each round, who was told so; each winner stands in the ledger.
    assert len(valid) == ROUNDS
    assert sorted(number for numbers in won for number in numbers) == [p.number for p in valid]
    assert [p.target for p in valid] == [1, 2, 3, 1]
    assert [p.based_on for p in valid] == [0, *(p.number for p in valid[:-1])]
    aliases = registry.models.aliases(name)
    assert (aliases["champion"], aliases["previous"]) == (1, 3)
