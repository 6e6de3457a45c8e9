"""How people read numbers, times and names: in the report and on MLflow's pages."""

from __future__ import annotations

import math
from datetime import UTC, datetime

NOT_MEASURED = "not measured"
DIGITS = 3
LARGEST, SMALLEST = 1e9, 1e-4
MINUTE, HOUR = 60, 3600
TITLES = {
    "accuracy": "pairs ranked right (fraction)",
    "finished_fraction": "responses that ended by themselves (fraction)",
    "heldout_accuracy": "held-out pairs ranked right (fraction)",
    "gain_over_noise": "mean reward above the opponent's, against the noise of sampling",
    "judged_fraction": "prompts judged (fraction)",
    "judged_prompts": "prompts judged",
    "kl": "KL to the reference (nats per response)",
    "kl_to_baseline": "KL to the baseline (nats per response)",
    "kl_to_reference": "KL to the SFT policy (nats per response)",
    "length_change": "response length, as a multiple of the champion's",
    "lost_prompts": "prompts lost",
    "refusals": "responses that look like refusals (fraction)",
    "response_tokens": "response length (tokens)",
    "reward_gain": "mean reward above the opponent's",
    "reward_stderr": "standard error of the mean reward",
    "source_regression": "sources on which it is worse",
    "win_rate_high": "win rate, upper bound",
    "win_rate_low": "win rate, lower bound",
    "win_rate_over_sft": "win rate over the SFT policy",
    "won_prompts": "prompts won",
    "worst_source_gain": "mean reward above the opponent's on the worst source",
}
"""Metrics whose names do not explain themselves."""
ACRONYMS = ("sft", "dpo", "ppo", "kl", "id", "cpu", "gpu")


def shown(value: float | None) -> str:
    """Return `value` as `measured` does, but a whole number (e.g. a count) without decimals."""
    if value is not None and float(value).is_integer() and abs(value) < LARGEST:
        return f"{value:,.0f}"
    return measured(value)


def measured(value: float | None) -> str:
    """Return `value` with 3 significant digits, and None as 'not measured'."""
    if value is None:
        return NOT_MEASURED
    if not math.isfinite(value):
        return "not finite"
    if value != 0 and not SMALLEST <= abs(value) < LARGEST:
        return f"{value:.{DIGITS - 1}e}"
    return f"{value:,.{_decimals(value, DIGITS)}f}"


def with_error(value: float | None, error: float | None) -> str:
    """Return `value ± error`: the error with 2 digits, the value with the error's decimals."""
    if value is None or error is None or not math.isfinite(value) or not 0 < error < math.inf:
        return measured(value)
    decimals = _decimals(error, 2)
    return f"{value:,.{decimals}f} ± {error:.{decimals}f}"


def change(before: float, after: float) -> str:
    """Return `before → after`, both with the decimals of the larger one, e.g. `0.02 → 1.00`."""
    decimals = _decimals(max(abs(before), abs(after)), DIGITS)
    return f"{before:,.{decimals}f} → {after:,.{decimals}f}"


def duration(seconds: float | None) -> str:
    """Return a time that people read, e.g. `43.8 s`, `4 min 05 s` or `2 h 30 min`."""
    if seconds is None:
        return NOT_MEASURED
    whole = round(seconds)
    if whole < MINUTE:
        return f"{shown(seconds)} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE:02d} s"
    return f"{whole // HOUR:,} h {whole % HOUR // MINUTE:02d} min"


def moment(at: float) -> str:
    """Return a Unix time as text, e.g. `21 November 2026, 14:05 UTC`."""
    when = datetime.fromtimestamp(at, UTC)
    return f"{when.day} {when:%B %Y, %H:%M} UTC"


def words(name: str) -> str:
    """Return a name as people write it, e.g. `rejection SFT` for `rejection_sft`."""
    return " ".join(w.upper() if w in ACRONYMS else w for w in name.split("_") if w)


def title(metric: str) -> str:
    """Return the name of a metric in words, e.g. `win rate, lower bound` for `win_rate_low`."""
    return TITLES.get(metric) or words(metric.replace("heldout", "held-out"))


def label(name: str) -> str:
    """Return `words` with a capital letter, for headings and cells."""
    return capital(words(name))


def capital(text: str) -> str:
    """Return `text` with a capital letter at its start."""
    return text[:1].upper() + text[1:]


def _decimals(value: float, digits: int) -> int:
    if value == 0 or not math.isfinite(value):
        return digits - 1
    # Counts digits of the rounded value, because 0.9996 with 3 digits is 1.00 and not 1.000.
    exponent = int(f"{value:.{digits - 1}e}".split("e")[1])
    return max(0, digits - 1 - exponent)
