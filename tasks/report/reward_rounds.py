"""What reinforcement learning bought: reward against distance, and what it optimised."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.catalog import find_stage
from stages.files import read_jsonl
from stages.runtime.manifest import Manifest


@dataclass(frozen=True)
class JudgedCheckpoint:
    """The policy after so many rounds, evaluated on held-out prompts by reward and judge.

    Attributes:
        done: number of rounds.
        distance: square root of the KL to the reference; None without a reference.
        reward: mean of the reward that is optimised.
        judge: mean of the judge's reward.
        ends: of the judge's 95 % interval; None for a single prompt.
    """

    done: int
    distance: float | None
    reward: float
    judge: float
    ends: tuple[float, float] | None


@dataclass(frozen=True)
class RewardRounds:
    """The rounds of a stage that samples its own responses and measures their reward.

    Attributes:
        optimised: names of the rewards in its config, e.g. `reward_model`.
        numbers: of the rounds.
        rewards: mean reward of the training rollouts, one per round.
        distances: square root of the KL to the reference, one per round; nan without a reference.
        parts: value by round of each part of the reward that is measured by itself, by its label.
        kept: the round whose policy became the artifact.
        parent: key of the stage that made the policy with which it began.
        checkpoints: the policies that the stage evaluated with a judge of its own.
        parted: the round after which reward and judge had parted; None if they never did.
    """

    optimised: str
    numbers: tuple[int, ...]
    rewards: tuple[float, ...]
    distances: tuple[float, ...]
    parts: Mapping[str, Mapping[int, float]]
    kept: int
    parent: str
    checkpoints: tuple[JudgedCheckpoint, ...] = ()
    parted: int | None = None

    @property
    def frontier(self) -> list[tuple[float, float]]:
        """The rounds as points (square root of the KL, reward)."""
        points = zip(self.distances, self.rewards, strict=True)
        return [point for point in points if math.isfinite(point[0])]


def read_reward_rounds(manifest: Manifest, metrics_jsonl: Path) -> RewardRounds | None:
    """Read the rounds of a stage; None for one that has no rounds with a reward."""
    stage, config = manifest.stage, manifest.config
    if not {"reward", "kl"} <= find_stage(stage).curves.keys():
        return None
    every = [(line["step"], line["metrics"]) for line in read_jsonl(metrics_jsonl)]
    lines = [(step, found) for step, found in every if _finite(found, f"{stage}/reward")]
    if not lines:
        return None
    kl, kept = f"{stage}/kl", manifest.metrics.get("exported_step")
    parted = manifest.metrics.get("parted_step")
    return RewardRounds(
        optimised=", ".join(dict.fromkeys(_names(config.get("reward", {})))),
        numbers=tuple(step for step, _ in lines),
        rewards=tuple(float(found[f"{stage}/reward"]) for _, found in lines),
        # An estimate of a small KL may be below zero.
        distances=tuple(
            math.sqrt(max(found[kl], 0.0)) if _finite(found, kl) else math.nan for _, found in lines
        ),
        parts=_parts(lines, f"{stage}/component_"),
        kept=lines[-1][0] if kept is None else int(kept),
        parent=manifest.parents.get("policy", ""),
        checkpoints=tuple(_judged(every, f"{stage}/heldout_")),
        parted=None if parted is None else int(parted),
    )


def _judged(
    lines: Sequence[tuple[int, Mapping[str, Any]]], prefix: str
) -> Iterator[JudgedCheckpoint]:
    kl, reward, judge = (f"{prefix}{name}" for name in ("kl", "reward", "judge_reward"))
    for step, found in lines:
        if _finite(found, reward) and _finite(found, judge):
            low, high = f"{judge}_low", f"{judge}_high"
            yield JudgedCheckpoint(
                done=step,
                distance=math.sqrt(max(found[kl], 0.0)) if _finite(found, kl) else None,
                reward=float(found[reward]),
                judge=float(found[judge]),
                ends=(found[low], found[high]) if _finite(found, low) else None,
            )


def _parts(
    lines: Sequence[tuple[int, Mapping[str, Any]]], prefix: str
) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for step, metrics in lines:
        for name in metrics:
            if name.startswith(prefix) and _finite(metrics, name):
                found.setdefault(name.removeprefix(prefix), {})[step] = float(metrics[name])
    return found


def _finite(metrics: Mapping[str, Any], name: str) -> bool:
    value = metrics.get(name)
    return value is not None and math.isfinite(value)


def _names(reward: Mapping[str, Any]) -> Iterator[str]:
    """Yield the name of a reward, or those of its parts."""
    parts = [part["reward"] for part in reward.get("parts", ())]
    yield from (str(each["name"]) for each in parts or [reward] if "name" in each)
