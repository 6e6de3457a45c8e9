"""The gate: conditions on an evaluation before its policy may become champion.

The evaluation's metrics, candidate against baseline on the same prompts:

    win_rate, win_rate_low       share of prompts won, and the lower end of its 95 % interval
    kl_to_reference              nats per response
    mean_reward, baseline_mean_reward
    response_tokens              mean length
    finished_fraction            share of responses that ended by themselves
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from stages.configs.block import Block, operational

SIGNS = {">": operator.gt, ">=": operator.ge, "<=": operator.le}


class GateConfig(Block):
    """Thresholds of a promotion; None disables a check. No stage result depends on them."""

    min_win_rate_low: float = operational(
        0.5,
        "Lower end of the win rate's 95 % interval must exceed this fraction; 0.5 says that the "
        "candidate is better than the baseline beyond chance.",
        ge=0,
        le=1,
    )
    min_reward_gain: float | None = operational(
        None, "Mean reward minus the baseline's must be at least this, in units of the reward."
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


class Check(BaseModel):
    """One threshold against one number; `found` is None if the evaluation did not measure it."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    name: str
    expected: str
    found: float | None
    passed: bool


class Verdict(BaseModel):
    """The decision of the gate with its checks; stored as the evidence of a promotion."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    passed: bool
    reasons: tuple[Check, ...]


def judge(metrics: Mapping[str, float], gate: GateConfig) -> Verdict:
    """Check an evaluation against the thresholds.

    Args:
        metrics: metrics of the evaluation; see the docstring of this module.
        gate: the thresholds.

    Returns:
        Passed only if every check passed; a number that is missing or NaN fails its check.
    """
    # Strictly above, because a candidate with only ties has the interval [0.5, 0.5].
    checks = [_check("win_rate_low", ">", gate.min_win_rate_low, metrics)]
    if gate.min_reward_gain is not None:
        checks.append(_check("reward_gain", ">=", gate.min_reward_gain, _reward_gain(metrics)))
    for name, sign, threshold in (
        ("kl_to_reference", "<=", gate.max_kl),
        ("response_tokens", "<=", gate.max_response_tokens),
        ("finished_fraction", ">=", gate.min_finished_fraction),
    ):
        if threshold is not None:
            checks.append(_check(name, sign, threshold, metrics))
    return Verdict(passed=all(check.passed for check in checks), reasons=tuple(checks))


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
    head = [passed if verdict.passed else refused, ""]
    return "\n".join([*head, "| check | expected | found | passed |", "|---|---|---|---|", *rows])


def _check(name: str, sign: str, threshold: float, metrics: Mapping[str, float]) -> Check:
    found = metrics.get(name)
    passed = found is not None and SIGNS[sign](found, threshold)
    return Check(name=name, expected=f"{sign} {threshold:g}", found=found, passed=passed)


def _reward_gain(metrics: Mapping[str, float]) -> dict[str, float]:
    if not {"mean_reward", "baseline_mean_reward"} <= metrics.keys():
        return {}
    return {"reward_gain": metrics["mean_reward"] - metrics["baseline_mean_reward"]}


def _shown(found: float | None) -> str:
    return "not measured" if found is None else f"{found:.4g}"
