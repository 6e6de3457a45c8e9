"""What a check has found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad a finding is."""

    GOOD = "good"
    WARNING = "warning"
    """Something will be slow, or will fail in some uses."""
    PROBLEM = "problem"
    """Runs will fail."""


@dataclass(frozen=True)
class Finding:
    """A fact about this machine.

    Attributes:
        level: how bad it is.
        found: the fact.
        fix: what to do; empty if it is good.
    """

    level: Level
    found: str
    fix: str = ""


def good(found: str) -> Finding:
    """Build a finding that needs nothing."""
    return Finding(Level.GOOD, found)


def warning(found: str, fix: str) -> Finding:
    """Build a finding of something that may fail."""
    return Finding(Level.WARNING, found, fix)


def problem(found: str, fix: str) -> Finding:
    """Build a finding of something that will fail."""
    return Finding(Level.PROBLEM, found, fix)
