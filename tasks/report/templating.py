"""The template environment of the pages; every text is escaped."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tasks import formatting

TEMPLATES = Path(__file__).parent / "templates"
LONGEST_TEXT = 1500


def environment() -> Environment:
    """Return a new environment with the filters of the pages."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "shown": formatting.shown,
        "measured": formatting.measured,
        "words": formatting.words,
        "title": formatting.title,
        "capital": formatting.capital,
        "label": formatting.label,
        "duration": formatting.duration,
        "moment": formatting.moment,
        "cut": _cut,
    }
    return made


def _cut(text: str) -> str:
    rest = len(text) - LONGEST_TEXT
    return text if rest <= 0 else f"{text[:LONGEST_TEXT]} … ({rest:,} more characters)"
