"""The gate: conditions on an evaluation before its policy may become champion.

The candidate must beat its opponent: the champion, or the SFT policy while there is none. The
evaluation's metrics, on the same prompts:

    won_prompts, lost_prompts, judged_prompts, judged_fraction
    reward_gain                  mean reward minus the opponent's
    win_rate_over_sft            only if the opponent is a champion
    kl_to_reference              nats per response
    response_tokens              mean length
    finished_fraction            share of responses that ended by themselves

The responses themselves show how the candidate did on each source of the prompts, and how lengths
and refusals differ from the champion's (`tasks.gate.judged_responses`).

A candidate that passes every check is promoted. One that fails a check is held if the evidence is
only not enough, and rejected if it speaks against the candidate, e.g. a mean loss, or a source on
which it is proven worse. The champion stays in both cases; of a candidate that is held, more
prompts may show that it is better.

Attempts against one opponent on the same prompts share the error rate. Attempt k is tested at

    level(k) = false_promotion_rate / (k (k + 1)),    level(1) + level(2) + ... = the rate

By the union bound, the chance that one of any number of equal policies is promoted stays below the
rate, however the attempts depend on each other (alpha spending for an open-ended sequence of tests:
Tian & Ramdas 2021, section 2, https://arxiv.org/abs/1910.04900).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from tasks.gate.gate_checks import (
    EVEN,
    Check,
    checks_of_drift,
    checks_of_noise,
    checks_of_sources,
    gain_check,
    metric_check,
    win_rate_check,
)
from tasks.gate.gate_config import GateConfig
from tasks.gate.judged_responses import JudgedResponses

INDEPENDENT = "a reward that no step optimised"
BOUNDS = ("win_rate_low", "win_rate_high")

GateOutcome = Literal["promote", "hold", "reject"]


class Verdict(BaseModel):
    """What the gate says of a candidate, with its checks; stored as the evidence of a decision.

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

    @property
    def outcome(self) -> GateOutcome:
        """`promote`; `hold`, if the evidence is not enough; `reject`, if it is against it."""
        if self.passed:
            return "promote"
        return "reject" if any(check.is_against for check in self.reasons) else "hold"

    def failed(self) -> str:
        """Return the failed checks in words, for messages."""
        return "; ".join(
            f"{c.name} {c.expected}, found {_shown(c.found)}" for c in self.reasons if not c.passed
        )


def judge(
    metrics: Mapping[str, float],
    gate: GateConfig,
    *,
    attempt: int = 1,
    dependent_judge: str = "",
    responses: JudgedResponses | None = None,
    has_champion: bool = False,
) -> Verdict:
    """Check an evaluation against the thresholds.

    Args:
        metrics: metrics of the evaluation; see the docstring of this module.
        gate: the thresholds.
        attempt: number of this attempt, from 1.
        dependent_judge: what the evaluation's reward was also used for, if a step optimised it.
        responses: what the responses show; None if they were not looked at, as in a rehearsal.
        has_champion: whether the opponent is a champion, from which lengths and refusals must not
            drift; the SFT policy is no measure of these.

    Returns:
        Passed only if every check passed; a number that is missing or NaN fails its check.
    """
    level = gate.level_of(attempt)
    reported = {name: value for name, value in metrics.items() if name not in BOUNDS}
    found = {**reported, **_win_rate_bounds(metrics, level)}  # at the level of this attempt
    checks = [
        Check(
            name="independent_judge",
            expected=INDEPENDENT,
            found=dependent_judge or "yes",
            passed=not dependent_judge,
        ),
        metric_check("judged_prompts", ">=", gate.min_judged_prompts, found, against=False),
        metric_check("judged_fraction", ">=", gate.min_judged_fraction, found, against=False),
        win_rate_check(gate, found),
        gain_check(gate, found),
    ]
    if "win_rate_over_sft" in found:
        checks.append(metric_check("win_rate_over_sft", ">=", EVEN, found))
    for name, sign, threshold in (
        ("kl_to_reference", "<=", gate.max_kl),
        ("response_tokens", "<=", gate.max_response_tokens),
        ("finished_fraction", ">=", gate.min_finished_fraction),
    ):
        if threshold is not None:
            checks.append(metric_check(name, sign, threshold, found))
    if responses is not None:
        checks += checks_of_sources(gate, responses.sources)
        checks += checks_of_noise(gate, responses, found.get("reward_gain"))
        checks += checks_of_drift(gate, responses) if has_champion else []
    passed = all(check.passed for check in checks)
    return Verdict(passed=passed, reasons=tuple(checks), attempt=attempt, level=level)


def as_table(verdict: Verdict) -> str:
    """Return the verdict as Markdown with a table of the checks, failed ones marked."""
    rows = [
        f"| {c.name} | {c.expected} | {_shown(c.found)} | {_answer(c)} |" for c in verdict.reasons
    ]
    head = ["| check | expected | found | passed |", "|---|---|---|---|"]
    return "\n".join([_summary(verdict), "", *head, *rows])


def as_list(verdict: Verdict) -> str:
    """Return the verdict as Markdown with a list of the checks, for a narrow place."""
    rows = [
        f"- {c.name}: {_shown(c.found)}, expected {c.expected}"
        + ("" if c.passed else f"; passed: {_answer(c)}")
        for c in verdict.reasons
    ]
    return "\n".join([_summary(verdict), "", *rows])


def _summary(verdict: Verdict) -> str:
    return (
        f"**{verdict.outcome.capitalize()}**: {_counted(verdict)}. Attempt {verdict.attempt} "
        "against this opponent on these prompts: the bound of the win rate has the level "
        f"{verdict.level:.2g}."
    )


def _counted(verdict: Verdict) -> str:
    total = len(verdict.reasons)
    failed = [check for check in verdict.reasons if not check.passed]
    if not failed:
        return f"{total} of {total} checks passed"
    against = sum(check.is_against for check in failed)
    speak = f"{against} of them against the candidate" if against else "none against the candidate"
    return f"{len(failed)} of {total} checks failed, {speak}"


def _answer(check: Check) -> str:
    if check.passed:
        return "yes"
    return "**no**, against it" if check.is_against else "**no**"


def _win_rate_bounds(metrics: Mapping[str, float], level: float) -> dict[str, float]:
    """Return both bounds at this level; nothing if the prompts were not counted."""
    from stages.sampling.win_rate_bounds import (  # noqa: PLC0415 - scipy, which no start needs
        win_rate_bounds,
    )

    counted = [metrics.get(f"{what}_prompts") for what in ("won", "lost", "judged")]
    won, lost, judged = (-1 if n is None else n for n in counted)
    if not 0 <= won + lost <= judged or min(won, lost) < 0:
        return {}
    low, high = win_rate_bounds(won, lost, judged - won - lost, level=level)
    return {"win_rate_low": float(low), "win_rate_high": float(high)}


def _shown(found: float | str | None) -> str:
    if isinstance(found, str):
        return found
    return "not measured" if found is None else f"{found:.4g}"
