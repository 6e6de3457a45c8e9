"""The report's figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tasks.formatting import label, shown, with_error
from tasks.report.curves import Curve
from tasks.report.lifecycle import Step
from tasks.report.policy_scores import Score
from tasks.report.samples import Samples
from tasks.report.svg import (
    ACCENT,
    GREEN,
    INK,
    LINE,
    MUTED,
    PAPER,
    VIOLET,
    WARM,
    canvas,
    inline,
    name_axes,
    tick,
    tidy,
)

NARROW = 330  # points; the width of a phone's screen, so that text stays readable
COLUMN = 250  # points; a third of the page
WINDOWS = 15  # a moving mean covers a fifteenth of the curve
REWARD_ROW, LINEAGE_ROW = 34, 36
ARC_PIECES = 40
BINS = 24

ROLE_COLOURS = {
    "policy": ACCENT,
    "dataset": GREEN,
    "reward_model": WARM,
    "reference": VIOLET,
}
"""Role -> colour in the lineage; the other roles train no model and are grey."""


def reward_plot(scores: Sequence[Score]) -> Markup | None:
    """Draw the judged reward of each policy with ±1 standard error; None if none was judged."""
    rows = [(s, s.reward) for s in scores if s.reward is not None]
    if not rows:
        return None
    figure, axes = canvas(NARROW, 52 + REWARD_ROW * len(rows))
    rewards = [reward for _, reward in rows]
    places = range(len(rows))
    axes.plot(rewards, places, color=LINE, linewidth=1.5, zorder=1)
    for place, (score, reward) in zip(places, rows, strict=True):
        colour = MUTED if score.role == "baseline" else ACCENT
        axes.errorbar(
            reward,
            place,
            xerr=score.stderr,
            fmt="o",
            color=colour,
            markersize=7,
            capsize=4,
            zorder=2,
        )
        axes.annotate(
            with_error(reward, score.stderr),
            (reward, place),
            (0, 9),
            textcoords="offset points",
            ha="center",
            color=INK,
            size=10,
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1},  # hides the line between dots
        )
    axes.set_yticks(places, [s.label for s, _ in rows], color=INK, size=11)
    axes.set_ylim(len(rows) - 0.5, -0.75)
    axes.margins(x=0.2)
    name_axes(axes, "mean held-out reward, ± 1 standard error", "")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(tick)
    alt = ", ".join(f"{s.label} {with_error(r, s.stderr)}" for s, r in rows)
    return inline(figure, f"Mean held-out reward: {alt}")


def curve_plot(curve: Curve, step: str) -> Markup:
    """Draw a curve and its intervals; many steps pale, with their moving mean over them."""
    figure, axes = canvas(COLUMN, 165, is_measured=False)
    window = len(curve.values) // WINDOWS
    is_long, is_point = window > 1, len(curve.steps) == 1
    axes.plot(
        curve.steps,
        curve.values,
        color=ACCENT,
        linewidth=0.8 if is_long else 1.6,
        alpha=0.35 if is_long else 1,
        marker="o" if is_point else "",
    )
    if is_long:
        means = moving_mean(curve.values, window)
        middle = (window - 1) // 2
        centres = curve.steps[middle : middle + len(means)]
        axes.plot(centres, means, color=ACCENT, linewidth=1.8)
    if curve.low:
        axes.fill_between(
            curve.steps, curve.low, curve.high, color=ACCENT, alpha=0.18, linewidth=3 * is_point
        )
    name_axes(axes, curve.x, curve.unit)
    axes.grid(axis="y", color=LINE, linewidth=0.6)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_formatter(tick)
    first, last = shown(curve.values[0]), shown(curve.values[-1])
    ends = f" ({shown(curve.low[-1])} to {shown(curve.high[-1])})" if curve.low else ""
    return inline(figure, f"{step}: {curve.title} from {first} to {last}{ends}")


def histogram(
    samples: Samples, values: Sequence[float], other: Sequence[float], x: str, step: str
) -> Markup:
    """Draw the shares of responses with a reward or length, and the outline of others.

    Args:
        samples: of which they are.
        values: rewards or lengths.
        other: those of the responses to compare with; empty if there are none.
        x: what is counted, with its unit.
        step: name of the step.
    """
    figure, axes = canvas(COLUMN, 150, is_measured=False)
    low, high = min((*values, *other)), max((*values, *other))
    reach = (low, high) if high > low else (low - 0.5, low + 0.5)
    bins = min(BINS, int(reach[1] - reach[0]) + 1) if x.startswith("length") else BINS
    share = [1 / len(values)] * len(values)
    axes.hist(values, bins=bins, range=reach, weights=share, color=ACCENT, alpha=0.75)
    if other:
        weights = [1 / len(other)] * len(other)
        axes.hist(other, bins=bins, range=reach, weights=weights, color=MUTED, histtype="step")
    name_axes(axes, x, "share of responses")
    tidy(axes)
    ends = f"{shown(min(values))} to {shown(max(values))}, median {shown(median(values))}"
    return inline(figure, f"{step}, {samples.name}: {x}, {ends}")


def lineage_plot(steps: Sequence[Step]) -> Markup:
    """Draw the steps from top to bottom with an arc from each input to the step that read it."""
    figure, axes = canvas(NARROW, 12 + LINEAGE_ROW * len(steps))
    rows = {step.ref.step: row for row, step in enumerate(steps)}
    drawn = set()
    for row, step in enumerate(steps):
        for source in step.inputs or ():
            start = rows.get(source.origin)
            if start is not None and (start, row) not in drawn:
                drawn.add((start, row))
                _arc(axes, start, row, ROLE_COLOURS.get(source.role, MUTED))
    axes.scatter([0] * len(steps), list(rows.values()), s=46, color=INK, edgecolor=PAPER, zorder=3)
    axes.set_yticks(list(rows.values()), [label(name) for name in rows], color=INK, size=11)
    axes.set_ylim(len(steps) - 0.5, -0.5)
    axes.set_xlim(-0.06, 1.05)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    return inline(
        figure, "Each step with an arc from its inputs; the table contains the same information"
    )


def _arc(axes: Axes, start: int, end: int, colour: str) -> None:
    """Draw half an ellipse between two rows; a longer one extends further to the right."""
    reach = min(1.0, 0.18 * (end - start) ** 0.9)
    turns = [math.pi * i / ARC_PIECES for i in range(ARC_PIECES + 1)]
    xs = [reach * math.sin(turn) for turn in turns]
    ys = [start + (end - start) * (1 - math.cos(turn)) / 2 for turn in turns]
    if colour == MUTED:
        axes.plot(xs, ys, color=colour, linewidth=1, linestyle=(0, (2, 2)), zorder=1)
    else:
        axes.plot(xs, ys, color=colour, linewidth=1.8, zorder=2)


def moving_mean(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of each `window` values that follow each other."""
    return [fmean(values[i : i + window]) for i in range(len(values) - window + 1)]
