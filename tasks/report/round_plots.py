"""Figures of what reinforcement learning bought."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tasks.formatting import shown
from tasks.report.plots import WINDOWS, moving_mean
from tasks.report.policy_scores import Score
from tasks.report.reward_rounds import RewardRounds
from tasks.report.svg import ACCENT, MUTED, WARM, canvas, inline, name_axes, tick, tidy

WIDTH, HEIGHT = 330, 220  # points
JUDGE = "mean reward of the judge"
KL_AXIS = "square root of the KL to the reference"


def frontier_plot(rounds: RewardRounds, step: str) -> Markup | None:
    """Draw the reward against the square root of the KL, in which Gao et al. find it regular.

    None without a reference.
    """
    points = rounds.frontier
    if len(points) < 2:  # noqa: PLR2004 - a line needs two
        return None
    figure, axes = canvas(WIDTH, HEIGHT)
    xs, ys = zip(*points, strict=True)
    axes.scatter(xs, ys, s=12, color=ACCENT, alpha=0.35, linewidth=0)
    window = max(2, len(points) // WINDOWS)
    axes.plot(moving_mean(xs, window), moving_mean(ys, window), color=ACCENT, linewidth=1.2)
    axes.plot(xs[-1], ys[-1], marker="o", markersize=6, color=WARM)
    at, place = (xs[-1], ys[-1]), (-6, 7)
    style = {"textcoords": "offset points", "ha": "right", "color": MUTED, "size": 10}
    axes.annotate("last round", at, place, **style)
    name_axes(axes, KL_AXIS, "mean training reward")
    axes.margins(x=0.05, y=0.15)
    tidy(axes)
    ends = f"from {shown(ys[0])} at {shown(xs[0])} to {shown(ys[-1])} at {shown(xs[-1])}"
    return inline(figure, f"{step}: reward against the square root of the KL, {ends}")


def true_reward_plot(
    rounds: RewardRounds, judge: str, scores: tuple[Score | None, Score | None], step: str
) -> Markup | None:
    """Draw the optimised reward over the rounds, and on an axis of its own what the judge says.

    Args:
        rounds: of the step.
        judge: name of the evaluation's reward; its curve is drawn if it is a part of the optimised
            reward, which every round then measures.
        scores: of the policies before the first round and after the one that was kept.
        step: name of the step.

    Returns:
        None if there is nothing of the judge.
    """
    places = rounds.numbers[0] - 1, rounds.kept
    judged = [
        (at, score.reward, score.stderr or 0.0)
        for at, score in zip(places, scores, strict=True)
        if score is not None and score.reward is not None
    ]
    part = rounds.parts.get(judge, {})
    if not judged and not part:
        return None
    figure, axes = canvas(WIDTH, HEIGHT)
    _line(axes, rounds.numbers, rounds.rewards, ACCENT)
    name_axes(axes, "round", "reward that was optimised")
    axes.yaxis.label.set_color(ACCENT)
    tidy(axes)
    other = _axis_of_the_judge(axes)
    if part:
        _line(other, list(part), list(part.values()), WARM)
    other.errorbar(
        [at for at, _, _ in judged],
        [reward for _, reward, _ in judged],
        yerr=[error for *_, error in judged],
        fmt="o",
        linestyle="" if part else (0, (3, 3)),
        color=WARM,
        markersize=6,
        capsize=4,
    )
    ends = ", ".join(f"{shown(reward)} at round {at}" for at, reward, _ in judged)
    start, end = shown(rounds.rewards[0]), shown(rounds.rewards[-1])
    return inline(figure, f"{step}: optimised reward from {start} to {end}; {JUDGE} {ends}")


def checkpoints_plot(rounds: RewardRounds, step: str) -> Markup | None:
    """Draw the optimised reward of the evaluated policies, and on its own axis the judge's.

    The horizontal axis is the square root of the KL, or the round where that was not measured.

    Args:
        rounds: of the step.
        step: its name.

    Returns:
        None if the step has no judge of its own.
    """
    found = rounds.checkpoints
    if not found:
        return None
    distances = [each.distance for each in found if each.distance is not None]
    by_kl = len(distances) == len(found)
    xs = distances if by_kl else [float(each.done) for each in found]
    figure, axes = canvas(WIDTH, HEIGHT)
    axes.plot(xs, [each.reward for each in found], marker="o", markersize=4, color=ACCENT)
    name_axes(axes, KL_AXIS if by_kl else "round", "held-out reward, optimised")
    axes.yaxis.label.set_color(ACCENT)
    tidy(axes)
    other = _axis_of_the_judge(axes)
    judged = [each.judge for each in found]
    ends = [each.ends or (each.judge, each.judge) for each in found]
    errors = [[j - low for j, (low, _) in zip(judged, ends, strict=True)]]
    errors.append([high - j for j, (_, high) in zip(judged, ends, strict=True)])
    other.errorbar(xs, judged, yerr=errors, fmt="o-", markersize=4, capsize=3, color=WARM)
    marks = {rounds.kept: "kept", rounds.parted: "parted"}
    for x, each in zip(xs, found, strict=True):
        if each.done in marks:
            axes.axvline(x, color=MUTED, linewidth=0.8, linestyle=(0, (3, 3)))
            style = {"xycoords": ("data", "axes fraction"), "color": MUTED, "size": 10}
            axes.annotate(f" {marks[each.done]}", (x, 0.02), **style)
    alt = ", ".join(f"{shown(e.reward)} and {shown(e.judge)} after {e.done}" for e in found)
    return inline(figure, f"{step}: held-out reward and the judge's by rounds: {alt}")


def _axis_of_the_judge(axes: Axes) -> Axes:
    """Return an axis on the right for what the judge says."""
    other = axes.twinx()
    other.set_frame_on(False)
    other.set_ylabel(JUDGE, color=WARM, size=10)
    other.margins(y=0.2)
    other.tick_params(colors=MUTED, labelsize=10, length=0, pad=4)
    other.yaxis.set_major_locator(MaxNLocator(4))
    other.yaxis.set_major_formatter(tick)
    return other


def _line(axes: Axes, xs: Sequence[int], ys: Sequence[float], colour: str) -> None:
    """Draw each round pale, and the moving mean over it."""
    axes.plot(xs, ys, color=colour, linewidth=0.8, alpha=0.35)
    window = max(1, len(xs) // WINDOWS)
    means = moving_mean(ys, window)
    first = (window - 1) // 2
    axes.plot(xs[first : first + len(means)], means, color=colour, linewidth=1.8)
