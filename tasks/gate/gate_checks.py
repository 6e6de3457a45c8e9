"""The conditions of the gate: each compares what was found with a threshold."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from math import isnan
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from tasks.gate.gate_config import GateConfig
from tasks.gate.judged_responses import JudgedResponses, SourceResult

SIGNS = {">": operator.gt, ">=": operator.ge, "<=": operator.le}
NO_LOSS = "no source is proven worse"
EVEN = 0.5
"""Win rate of a policy against itself."""


class Check(BaseModel):
    """One condition and what was found.

    Attributes:
        name: what is checked.
        expected: the condition, in words.
        found: None if the evaluation did not measure it.
        passed: whether the condition holds.
        is_against: whether what was found speaks against the candidate. A check that failed without
            it says only that the evidence is not enough.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    name: str
    expected: str
    found: float | str | None
    passed: bool
    is_against: bool = False


def win_rate_check(gate: GateConfig, found: Mapping[str, float]) -> Check:
    """Require the lower bound; the upper one says whether the candidate is proven to be worse."""
    low = metric_check("win_rate_low", ">", gate.min_win_rate_low, found, against=False)
    is_worse = found.get("win_rate_high", 1.0) <= gate.min_win_rate_low
    return low.model_copy(update={"is_against": not low.passed and is_worse})


def gain_check(gate: GateConfig, found: Mapping[str, float]) -> Check:
    """Require a mean gain; only a mean loss speaks against the candidate."""
    gain = metric_check("reward_gain", ">", gate.min_reward_gain, found, against=False)
    is_loss = found.get("reward_gain", 0.0) < 0
    return gain.model_copy(update={"is_against": not gain.passed and is_loss})


def checks_of_sources(gate: GateConfig, sources: tuple[SourceResult, ...]) -> Iterator[Check]:
    """Check each source of the prompts; with a single one there is nothing more to see.

    Each of m sources is tested at rate / m (Bonferroni), so that the chance to turn down a policy
    that is equal on all of them is at most the rate.
    """
    if len(sources) > 1 and gate.source_regression_rate is not None:
        worse = [s for s in sources if _is_worse(s, gate.source_regression_rate / len(sources))]
        told = "; ".join(f"{s.source}: won {s.won}, lost {s.lost}, tied {s.tied}" for s in worse)
        name, found = "source_regression", told or f"none of {len(sources)} is"
        yield Check(
            name=name, expected=NO_LOSS, found=found, passed=not worse, is_against=bool(worse)
        )
    if len(sources) > 1 and gate.max_source_loss is not None:
        worst = min(sources, key=lambda source: source.gain)
        passed = worst.gain >= -gate.max_source_loss
        yield Check(
            name="worst_source_gain",
            expected=f">= {-gate.max_source_loss:g}",
            found=f"{worst.gain:.4g} on {worst.source}",
            passed=passed,
            is_against=not passed,
        )


def _is_worse(source: SourceResult, level: float) -> bool:
    from stages.sampling.win_rate_bounds import (  # noqa: PLC0415 - scipy, which no start needs
        win_rate_bounds,
    )

    _, high = win_rate_bounds(source.won, source.lost, source.tied, level=level)
    return float(high) < EVEN


def checks_of_noise(
    gate: GateConfig, responses: JudgedResponses, gain: float | None
) -> Iterator[Check]:
    """Compare the gain with what sampling the same policies again would change."""
    noise = responses.gain_noise
    if gate.min_gain_over_noise is None or noise is None:
        return
    needed = gate.min_gain_over_noise * noise
    yield Check(
        name="gain_over_noise",
        expected=f">= {needed:.4g}, i.e. {gate.min_gain_over_noise:g} times the noise of sampling",
        found=gain,
        passed=gain is not None and gain >= needed,
    )


def checks_of_drift(gate: GateConfig, responses: JudgedResponses) -> Iterator[Check]:
    """Compare lengths and refusals with those of the champion."""
    if (most := gate.max_length_change) is not None:
        ratio = responses.length_ratio
        passed = ratio is not None and 1 / most <= ratio <= most
        yield Check(
            name="length_change",
            expected=f"{1 / most:.3g} to {most:.3g} times the champion's",
            found=ratio,
            passed=passed,
            is_against=not passed and ratio is not None,
        )
    if gate.max_refusal_rise is not None:
        ours, theirs = responses.refusals, responses.opponent_refusals
        passed = ours - theirs <= gate.max_refusal_rise
        yield Check(
            name="refusals",
            expected=f"<= {theirs + gate.max_refusal_rise:.3g}, the champion has {theirs:.3g}",
            found=ours,
            passed=passed,
            is_against=not passed,
        )


def metric_check(
    name: str, sign: str, threshold: float, metrics: Mapping[str, float], *, against: bool = True
) -> Check:
    """Compare a metric with its threshold.

    Args:
        name: of the metric.
        sign: of `SIGNS`.
        threshold: what it is compared with.
        metrics: all metrics.
        against: whether a measured number that fails speaks against the candidate.
    """
    found = metrics.get(name)
    passed = found is not None and SIGNS[sign](found, threshold)
    is_against = against and found is not None and not isnan(found) and not passed
    return Check(
        name=name,
        expected=f"{sign} {threshold:g}",
        found=found,
        passed=passed,
        is_against=is_against,
    )
