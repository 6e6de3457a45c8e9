"""The report's pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tasks.report.curves import Curve
from tasks.report.formatting import label, shown, with_error
from tasks.report.lifecycle import Step
from tasks.report.policy_scores import Score
from tasks.report.svg import ACCENT, GREEN, INK, LINE, MUTED, PAPER, VIOLET, WARM, canvas, inline

NARROW = 330  # points; the width of a phone's screen, so that text stays readable
WINDOWS = 15  # a moving mean covers a fifteenth of the curve
REWARD_ROW, LINEAGE_ROW = 34, 36
ARC_PIECES = 40

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
    axes.set_xlabel("mean held-out reward, ± 1 standard error", color=MUTED, size=10)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(_tick)
    alt = ", ".join(f"{s.label} {with_error(r, s.stderr)}" for s, r in rows)
    return inline(figure, f"Mean held-out reward: {alt}")


def curve_plot(curve: Curve, step: str) -> Markup:
    """Draw a curve: each step faint, and its moving mean where there are enough steps."""
    figure, axes = canvas(250, 140)
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
        means = _moving_mean(curve.values, window)
        middle = (window - 1) // 2
        centres = curve.steps[middle : middle + len(means)]
        axes.plot(centres, means, color=ACCENT, linewidth=1.8)
    axes.grid(axis="y", color=LINE, linewidth=0.6)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_formatter(_tick)
    first, last = shown(curve.values[0]), shown(curve.values[-1])
    return inline(figure, f"{step}: {curve.title} from {first} to {last}")


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
        figure, "Which step read what which other step made; the table beside it says the same"
    )


def _arc(axes: Axes, start: int, end: int, colour: str) -> None:
    """Draw half an ellipse from row to row; a longer one reaches further to the right."""
    reach = min(1.0, 0.18 * (end - start) ** 0.9)
    turns = [math.pi * i / ARC_PIECES for i in range(ARC_PIECES + 1)]
    xs = [reach * math.sin(turn) for turn in turns]
    ys = [start + (end - start) * (1 - math.cos(turn)) / 2 for turn in turns]
    if colour == MUTED:
        axes.plot(xs, ys, color=colour, linewidth=1, linestyle=(0, (2, 2)), zorder=1)
    else:
        axes.plot(xs, ys, color=colour, linewidth=1.8, zorder=2)


def _moving_mean(values: Sequence[float], window: int) -> list[float]:
    return [fmean(values[i : i + window]) for i in range(len(values) - window + 1)]


def _tick(value: float, _: float) -> str:
    return f"{value:.4g}"
