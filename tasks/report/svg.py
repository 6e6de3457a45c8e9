"""Matplotlib figures as SVG in the page, with its fonts and its light or dark colours."""

from __future__ import annotations

import io
import re
from hashlib import sha256
from typing import Any

from markupsafe import Markup, escape
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

INK, MUTED, LINE, PAPER = "#010101", "#010102", "#010103", "#010104"
ACCENT, GREEN, WARM, VIOLET = "#010105", "#010106", "#010107", "#010108"

PAINT = {
    INK: "ink",
    MUTED: "muted",
    LINE: "line",
    PAPER: "card",
    ACCENT: "accent",
    GREEN: "green",
    WARM: "warm",
    VIOLET: "violet",
}
"""Colour in matplotlib -> the CSS variable of the page that replaces it."""

POINTS_PER_INCH = 72
SETTINGS = {"svg.fonttype": "none", "font.family": "sans-serif", "axes.unicode_minus": False}


LEFT, RIGHT, BOTTOM, TOP = 52, 14, 38, 6
"""Margins in points of a figure whose labels are a name and numbers of few digits."""


def canvas(width: float, height: float, *, is_measured: bool = True) -> tuple[Figure, Axes]:
    """Return an empty figure of `width` by `height` points; its axes have only a bottom line.

    Args:
        width: in points.
        height: in points.
        is_measured: whether the margins fit the labels, for which everything is drawn twice; else
            they are fixed, and the charts of a page stand in line.
    """
    figure = Figure(
        figsize=(width / POINTS_PER_INCH, height / POINTS_PER_INCH),
        layout="constrained" if is_measured else None,
    )
    if not is_measured:
        figure.subplots_adjust(
            left=LEFT / width, right=1 - RIGHT / width, bottom=BOTTOM / height, top=1 - TOP / height
        )
    axes = figure.add_subplot()
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(LINE)
    axes.tick_params(colors=MUTED, labelsize=10, length=0, pad=4)
    return figure, axes


def name_axes(axes: Axes, x: str, y: str) -> None:
    """Write what the axes show, with its unit."""
    axes.set_xlabel(x, color=MUTED, size=10)
    axes.set_ylabel(y, color=MUTED, size=10)


def tick(value: float, _: float) -> str:
    """Return the number at a tick of an axis."""
    return f"{value:.4g}"


def tidy(axes: Axes) -> None:
    """Draw a faint grid and few ticks."""
    axes.grid(axis="y", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(tick)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(tick)


def inline(figure: Figure, alt: str) -> Markup:
    """Return the figure as an `<svg>` element that scales with its column.

    Args:
        figure: drawn with the colours of this module.
        alt: description for people who cannot see the figure.
    """
    # Marker and clip ids come from the salt; those of two figures on one page must differ.
    settings: dict[Any, Any] = SETTINGS | {"svg.hashsalt": sha256(alt.encode()).hexdigest()}
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    file = io.StringIO()
    with rc_context(settings):
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    box, body = re.split(r'<svg[^>]*viewBox="([^"]*)"[^>]*>', file.getvalue())[1:]
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = re.sub(r"font: (?:\w+ )*([\d.]+px) [^;\"]*", r"font-size: \1", body)
    body = re.sub("#0101[0-9a-f]{2}", lambda found: f"var(--{PAINT[found[0]]})", body)
    return Markup(f'<svg role="img" aria-label="{escape(alt)}" viewBox="{box}">{body}')
