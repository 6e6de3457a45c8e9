"""The page that lists all reports of a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.report.templating import environment


@dataclass(frozen=True)
class ReportLink:
    """One report.

    Attributes:
        href: of its page, relative to the list.
        at: Unix time.
        lifecycle: prefix of the names of its models.
        flow: the flow's name; empty for reports of earlier releases.
        name: of the flow run.
        reward: held-out rewards of the first and the last policy, as text.
        is_champion: whether the policy of the run became champion, or was it already.
        verdict: why, in words.
    """

    href: str
    at: float
    lifecycle: str
    flow: str
    name: str
    reward: str
    is_champion: bool
    verdict: str


def render_index(links: Sequence[ReportLink]) -> str:
    """Return the page; the links are shown in the given order."""
    return environment().get_template("index.html.j2").render(links=links)
