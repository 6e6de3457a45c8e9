"""Results of an evaluation: a score per policy, and the answers of all policies to some prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stages.files import read_jsonl
from stages.runtime.manifest import Manifest
from stages.runtime.store import Store
from tasks.formatting import label
from tasks.report.samples import Samples, samples_of

PROMPTS, REGRESSIONS = 8, 6
BASELINE, POLICY = "baseline", "policy"


@dataclass(frozen=True)
class Score:
    """The score of one policy.

    Attributes:
        step: name of the step that produced the policy; its role if that is not known.
        role: `baseline`, `policy` or `policy_<name>`.
        metrics: its metrics in `summary.json`.
    """

    step: str
    role: str
    metrics: Mapping[str, float]

    @property
    def label(self) -> str:
        """Name of the policy for people."""
        return label(self.step)

    @property
    def reward(self) -> float | None:
        """Mean over the held-out prompts."""
        return self.metrics.get("mean_reward")

    @property
    def stderr(self) -> float | None:
        """Standard error of the mean reward."""
        return self.metrics.get("reward_stderr")


@dataclass(frozen=True)
class Answer:
    """One policy's response to a prompt; both are None if no response was scored."""

    label: str
    response: str | None
    reward: float | None
    is_best: bool


@dataclass(frozen=True)
class PromptAnswers:
    """One held-out prompt and an answer per policy.

    Attributes:
        prompt: its text.
        answers: in the order of the scores.
        gain: reward of the policy's answer minus that of the baseline's; None without both.
    """

    prompt: str
    answers: tuple[Answer, ...]
    gain: float | None


@dataclass(frozen=True)
class Evaluation:
    """A judged comparison.

    Attributes:
        step: its name in the flow.
        judge: name of the reward that scored the responses.
        scores: baseline first, `policy` last.
        prompts: the first prompts of the held-out data, without any selection.
        regressions: the prompts whose reward fell most from the baseline to the policy, the worst
            first.
        samples: responses of each policy, by the step that produced it.
    """

    step: str
    judge: str | None
    scores: tuple[Score, ...]
    prompts: tuple[PromptAnswers, ...]
    regressions: tuple[PromptAnswers, ...]
    samples: Mapping[str, Samples]

    @property
    def baseline(self) -> Score | None:
        """The policy with which the others are compared."""
        return next((s for s in self.scores if s.role == BASELINE), None)

    @property
    def policy(self) -> Score | None:
        """Score of the candidate; None if it is missing."""
        return next((s for s in self.scores if s.role == POLICY), None)


def read_evaluation(
    store: Store, manifest: Manifest, step: str, names: Mapping[str, str]
) -> Evaluation:
    """Read an evaluation's artifact.

    Args:
        store: contains the artifact.
        manifest: manifest of the evaluation.
        step: its name in the flow.
        names: step name by stage key, in the flow's order.
    """
    folder = store.artifact_dir(manifest)
    summary = json.loads((folder / "summary.json").read_text())
    steps = {name: _step_of(manifest, name, names) for name in summary}
    order = _ordered(steps, list(names.values()))
    scores = tuple(Score(steps[name], _role(name), summary[name]) for name in order)
    labels = {name: label(steps[name]) for name in order}
    judge = manifest.config.get("reward", {}).get("name")
    rows = read_jsonl(folder / "samples.jsonl")
    prompts = _side_by_side(rows, labels)
    fallen = sorted((p for p in prompts if (p.gain or 0) < 0), key=lambda p: p.gain or 0)
    by_policy = {name: [row for row in rows if row["policy"] == name] for name in order}
    found = {steps[name]: samples_of(labels[name], by_policy[name]) for name in order}
    return Evaluation(
        step,
        judge,
        scores,
        prompts[:PROMPTS],
        tuple(fallen[:REGRESSIONS]),
        {name: samples for name, samples in found.items() if samples is not None},
    )


def _role(name: str) -> str:
    return name if name in (BASELINE, POLICY) else f"policy_{name}"


def _step_of(manifest: Manifest, name: str, names: Mapping[str, str]) -> str:
    return names.get(manifest.parents.get(_role(name), ""), name)


def _ordered(steps: Mapping[str, str], flow: Sequence[str]) -> list[str]:
    """Return baseline first, `policy` last, the others in the flow's order, unknown steps first."""

    def place(name: str) -> tuple[int, int]:
        rank = {BASELINE: 0, POLICY: 2}.get(name, 1)
        return rank, flow.index(steps[name]) if steps[name] in flow else -1

    return sorted(steps, key=place)


def _side_by_side(
    rows: Sequence[Mapping[str, Any]], labels: Mapping[str, str]
) -> tuple[PromptAnswers, ...]:
    """Return all prompts, and each policy's first response to each."""
    prompts: dict[str, str] = {}
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in rows:
        prompts.setdefault(row["prompt_id"], row["prompt"])
        found.setdefault((row["prompt_id"], row["policy"]), row)
    answers = ((text, {n: found.get((id_, n)) for n in labels}) for id_, text in prompts.items())
    return tuple(PromptAnswers(text, _answers(by, labels), _gain(by)) for text, by in answers)


def _gain(rows: Mapping[str, Mapping[str, Any] | None]) -> float | None:
    ours, theirs = rows.get(POLICY), rows.get(BASELINE)
    return float(ours["reward"] - theirs["reward"]) if ours and theirs else None


def _answers(
    rows: Mapping[str, Mapping[str, Any] | None], labels: Mapping[str, str]
) -> tuple[Answer, ...]:
    rewards = [row["reward"] for row in rows.values() if row]
    best = max(rewards) if len(set(rewards)) > 1 else None
    return tuple(
        Answer(labels[name], row["response"], row["reward"], row["reward"] == best)
        if row
        else Answer(labels[name], None, None, is_best=False)
        for name, row in rows.items()
    )
