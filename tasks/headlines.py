"""The line that tells what a stage improved, from its metrics and the templates of its record."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from stages.catalog import STAGES
from tasks.formatting import NOT_MEASURED, change, measured, shown, title

Metrics = Mapping[str, float]
PLACE = re.compile(r"{(\w+)(?:->(\w+))?}")
"""A place of a headline."""


def headline_of(stage: str, metrics: Metrics) -> str:
    """Describe the result of a stage in a few words.

    Args:
        stage: its name; for one that this version of Ratchet does not have, the first metrics.
        metrics: of its manifest.
    """
    record = STAGES.get(stage)
    for template in (record.heldout_headline, record.headline) if record else ():
        if template and {*_names_in(template)} <= metrics.keys():
            return _filled(template, metrics)
    first = list(metrics.items())[:2]
    return ", ".join(f"{title(n)} {shown(v)}" for n, v in first) or NOT_MEASURED


def _names_in(template: str) -> Iterator[str]:
    """Yield the metrics that a headline shows."""
    for match in PLACE.finditer(template):
        yield from filter(None, match.groups())


def _filled(template: str, metrics: Metrics) -> str:
    """Fill in `{metric}` and `{before->after}`, with the interval of the metric if it has one."""

    def fill(match: re.Match[str]) -> str:
        before, after = match.groups()
        text = shown(metrics[before]) if after is None else change(metrics[before], metrics[after])
        low, high = (metrics.get(f"{after or before}_{end}") for end in ("low", "high"))
        if low is None or high is None:
            return text
        return f"{text} (95 % interval {measured(low)} to {measured(high)})"

    return PLACE.sub(fill, template)
