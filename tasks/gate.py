"""The gate: conditions on an evaluation before its policy may become champion.

The candidate must beat its opponent: the champion, or the SFT policy while there is none. The
evaluation's metrics, on the same prompts:

    won_prompts, lost_prompts, judged_prompts, judged_fraction
    reward_gain                  mean reward minus the opponent's
    win_rate_over_sft            only if the opponent is a champion
    kl_to_reference              nats per response
    response_tokens              mean length
    finished_fraction            share of responses that ended by themselves

Attempts against one opponent on the same prompts share the error rate. Attempt k is tested at

    level(k) = false_promotion_rate / (k (k + 1)),    level(1) + level(2) + ... = the rate

By the union bound, the chance that one of any number of equal policies is promoted stays below the
rate, however the attempts depend on each other (alpha spending for an open-ended sequence of tests:
Tian & Ramdas 2021, section 2, https://arxiv.org/abs/1910.04900).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from stages.configs.block import Block, operational

SIGNS = {">": operator.gt, ">=": operator.ge, "<=": operator.le}
INDEPENDENT = "a reward that no step optimised"


class GateConfig(Block):
    """Thresholds of a promotion; None disables a check. No stage result depends on them."""

    false_promotion_rate: float = operational(
        0.025,
        "Chance that a policy that is only equal to its opponent is promoted, at most; over all "
        "attempts against this opponent on the same prompts.",
        gt=0,
        lt=0.5,
    )
    min_judged_prompts: int = operational(
        50,
        "At least so many prompts must be judged; with 50 a policy that wins three of four is "
        "found in nine of ten evaluations.",
        ge=1,
    )
    min_judged_fraction: float = operational(
        0.9,
        "At least this fraction of the prompts must be judged, i.e. neither too long nor without a "
        "reward; those that are left out are not a random choice.",
        ge=0,
        le=1,
    )
    min_win_rate_low: float = operational(
        0.5,
        "Lower bound of the win rate must exceed this fraction; 0.5 says that the candidate is "
        "better than its opponent beyond chance.",
        ge=0,
        le=1,
    )
    min_reward_gain: float = operational(
        0.0,
        "Mean reward minus the opponent's must exceed this, in units of the reward. Without it "
        "many small wins would outweigh a few large losses, and champions could go round in a "
        "circle.",
        ge=0,
    )
    max_kl: float | None = operational(
        None, "Divergence from the reference may be at most this, in nats per response.", ge=0
    )
    max_response_tokens: float | None = operational(
        None,
        "Mean response may be at most this long, against rewards that length alone buys.",
        gt=0,
    )
    min_finished_fraction: float | None = operational(
        None, "At least this fraction of responses must end by themselves.", ge=0, le=1
    )

    def level_of(self, attempt: int) -> float:
        """Return the level of an attempt; attempts are counted from 1."""
        return self.false_promotion_rate / (attempt * (attempt + 1))


class Check(BaseModel):
    """One condition and what was found; `found` is None if the evaluation did not measure it."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    name: str
    expected: str
    found: float | str | None
    passed: bool


class Verdict(BaseModel):
    """The decision of the gate with its checks; stored as the evidence of a promotion.

    Attributes:
        passed: whether every check passed.
        reasons: the checks.
        attempt: number of this attempt against its opponent on these prompts, from 1.
        level: level of the bound of the win rate, which the attempt determines.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    passed: bool
    reasons: tuple[Check, ...]
    attempt: int = 1
    level: float

    def failed(self) -> str:
        """Return the failed checks in words, for messages."""
        return "; ".join(
            f"{c.name} {c.expected}, found {_shown(c.found)}" for c in self.reasons if not c.passed
        )


def judge(
    metrics: Mapping[str, float], gate: GateConfig, *, attempt: int = 1, dependent_judge: str = ""
) -> Verdict:
    """Check an evaluation against the thresholds.

    Args:
        metrics: metrics of the evaluation; see the docstring of this module.
        gate: the thresholds.
        attempt: number of this attempt, from 1.
        dependent_judge: what the evaluation's reward was also used for, if a step optimised it.

    Returns:
        Passed only if every check passed; a number that is missing or NaN fails its check.
    """
    level = gate.level_of(attempt)
    reported = {name: value for name, value in metrics.items() if name != "win_rate_low"}
    found = {**reported, **_win_rate_low(metrics, level)}  # at the level of this attempt
    checks = [
        Check(
            name="independent_judge",
            expected=INDEPENDENT,
            found=dependent_judge or "yes",
            passed=not dependent_judge,
        ),
        _check("judged_prompts", ">=", gate.min_judged_prompts, found),
        _check("judged_fraction", ">=", gate.min_judged_fraction, found),
        _check("win_rate_low", ">", gate.min_win_rate_low, found),
        _check("reward_gain", ">", gate.min_reward_gain, found),
    ]
    if "win_rate_over_sft" in found:
        checks.append(_check("win_rate_over_sft", ">=", 0.5, found))
    for name, sign, threshold in (
        ("kl_to_reference", "<=", gate.max_kl),
        ("response_tokens", "<=", gate.max_response_tokens),
        ("finished_fraction", ">=", gate.min_finished_fraction),
    ):
        if threshold is not None:
            checks.append(_check(name, sign, threshold, found))
    passed = all(check.passed for check in checks)
    return Verdict(passed=passed, reasons=tuple(checks), attempt=attempt, level=level)


def as_table(verdict: Verdict) -> str:
    """Return the verdict as Markdown, failed checks marked."""
    rows = [
        f"| {c.name} | {c.expected} | {_shown(c.found)} | {'yes' if c.passed else '**no**'} |"
        for c in verdict.reasons
    ]
    failed = sum(not check.passed for check in verdict.reasons)
    total = len(verdict.reasons)
    passed, refused = (
        f"**Passed**: {total} of {total}.",
        f"**Refused**: {failed} of {total} failed.",
    )
    attempt = (
        f"Attempt {verdict.attempt} against this opponent on these prompts: the bound of the win "
        f"rate has the level {verdict.level:.2g}."
    )
    head = [f"{passed if verdict.passed else refused} {attempt}", ""]
    return "\n".join([*head, "| check | expected | found | passed |", "|---|---|---|---|", *rows])


def _check(name: str, sign: str, threshold: float, metrics: Mapping[str, float]) -> Check:
    found = metrics.get(name)
    passed = found is not None and SIGNS[sign](found, threshold)
    return Check(name=name, expected=f"{sign} {threshold:g}", found=found, passed=passed)


def _win_rate_low(metrics: Mapping[str, float], level: float) -> dict[str, float]:
    """Return the lower bound at this level; nothing if the prompts were not counted."""
    from stages.sampling.win_rate_bounds import (  # noqa: PLC0415 - scipy, which no start needs
        win_rate_bounds,
    )

    counted = [metrics.get(f"{what}_prompts") for what in ("won", "lost", "judged")]
    won, lost, judged = (-1 if n is None else n for n in counted)
    if not 0 <= won + lost <= judged or min(won, lost) < 0:
        return {}
    low, _ = win_rate_bounds(won, lost, judged - won - lost, level=level)
    return {"win_rate_low": float(low)}


def _shown(found: float | str | None) -> str:
    if isinstance(found, str):
        return found
    return "not measured" if found is None else f"{found:.4g}"
