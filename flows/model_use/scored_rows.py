"""Rows for a reward: a prompt with one response, or a pair; and what their scores say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from stages import datasets
from stages.configs.data_config import FileDataConfig
from stages.data_check.recognition import recognise_columns
from stages.datasets import Demonstration, Preference
from stages.sampling.intervals import mean_interval, share_interval
from training_core.errors import DataError
from training_core.messages import Messages
from training_core.rewards.reward import Scored, Unscored
from training_core.types import Prompt, Rollout


@dataclass(frozen=True)
class ResponseRows:
    """Rows with one response.

    Attributes:
        rows: prompts and responses.
        columns: further columns of each row.
    """

    rows: Sequence[Demonstration]
    columns: Sequence[Mapping[str, Any]]
    what: str = "responses"

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def rollouts(self, number: int) -> list[Rollout]:
        """Return the response of a row."""
        row = self.rows[number]
        prompt = _prompt(number, row.prompt, self.columns[number])
        return [_rollout(prompt, row.response, is_finished=row.is_finished)]

    def line(self, number: int, scores: Sequence[Scored | Unscored]) -> dict[str, Any]:
        """Return a row with its score."""
        row, (score,) = self.rows[number], scores
        return {"prompt": list(row.prompt), "response": row.response, **_scored(score)}

    def summary(self, lines: Sequence[Mapping[str, Any]]) -> str:
        """Return the mean score over prompts, with its interval."""
        means = _by_prompt(lines, "score")
        interval = mean_interval(means) if means else None
        within = "" if interval is None else f" [{interval[0]:.4g}, {interval[1]:.4g}]"
        found = f"{fmean(means):.4g}" if means else "none"
        return f"mean score {found}{within} over {len(means)} prompts"

    def details(self, lines: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return nothing: only pairs have subsets."""
        del lines
        return []


@dataclass(frozen=True)
class PairRows:
    """Rows with a better and a worse response."""

    rows: Sequence[Preference]
    what: str = "pairs"

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def rollouts(self, number: int) -> list[Rollout]:
        """Return the chosen and the rejected response of a row."""
        row = self.rows[number]
        prompt = _prompt(number, row.prompt, {})
        return [
            _rollout(prompt, row.chosen, is_finished=row.chosen_finished),
            _rollout(prompt, row.rejected, is_finished=row.rejected_finished),
        ]

    def line(self, number: int, scores: Sequence[Scored | Unscored]) -> dict[str, Any]:
        """Return a pair with both scores, and whether the chosen one is higher: 1, 0 or 0.5."""
        row, (chosen, rejected) = self.rows[number], scores
        texts = {"prompt": list(row.prompt), "chosen": row.chosen, "rejected": row.rejected}
        texts |= {"subset": row.subset} if row.subset else {}
        for score in scores:
            if isinstance(score, Unscored):
                return {**texts, "correct": None, "reason": score.reason}
        assert isinstance(chosen, Scored)
        assert isinstance(rejected, Scored)
        margin = chosen.reward - rejected.reward
        return {
            **texts,
            "chosen_score": chosen.reward,
            "rejected_score": rejected.reward,
            "margin": margin,
            "correct": 0.5 if margin == 0 else float(margin > 0),
        }

    def summary(self, lines: Sequence[Mapping[str, Any]]) -> str:
        """Return the accuracy over prompts, with its interval."""
        means = _by_prompt(lines, "correct")
        if not means:
            return "accuracy none over 0 prompts"
        low, high = share_interval(means)
        return f"accuracy {fmean(means):.4f} [{low:.4f}, {high:.4f}] over {len(means)} prompts"

    def details(self, lines: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the accuracy of each subset of a benchmark; none without a column `subset`."""
        names = dict.fromkeys(line["subset"] for line in lines if "subset" in line)
        return [
            f"  {name}: {self.summary([line for line in lines if line.get('subset') == name])}"
            for name in names
        ]


Rows = ResponseRows | PairRows


def read_rows(data: FileDataConfig, *, with_columns: bool) -> Rows:
    """Read pairs, if the columns fit them, and otherwise rows with a response.

    Args:
        data: a file of any format that the stages read.
        with_columns: whether the reward reads further columns of a row with a response.

    Raises:
        DataError: if it cannot be read as either.
    """
    if "preferences" in recognise_columns(data).used:
        return PairRows(datasets.preferences(data))
    rows = datasets.demonstrations(data)
    if not with_columns:
        return ResponseRows(rows, [{}] * len(rows))
    prompts = datasets.prompts(data)
    if [row.prompt for row in rows] != [row.prompt for row in prompts]:
        raise DataError(
            f"{data.path}: its prompts are read differently with and without their responses, "
            "so the other columns cannot be given to the reward; use the columns `prompt` and "
            "`response`"
        )
    return ResponseRows(rows, [row.columns for row in prompts])


def _prompt(number: int, messages: Messages, columns: Mapping[str, Any]) -> Prompt:
    return Prompt(str(number + 1), messages, "", (), columns)


def _rollout(prompt: Prompt, text: str, *, is_finished: bool) -> Rollout:
    return Rollout(prompt, (), (), text, is_finished, policy_version=0)


def _scored(score: Scored | Unscored) -> dict[str, Any]:
    if isinstance(score, Unscored):
        return {"score": None, "reason": score.reason}
    parts = {"components": dict(score.components)} if score.components else {}
    return {"score": score.reward, **parts}


def _by_prompt(lines: Sequence[Mapping[str, Any]], column: str) -> list[float]:
    """Return the mean of a column for each prompt that has values."""
    found: dict[str, list[float]] = {}
    for line in lines:
        if line[column] is not None:
            found.setdefault(json.dumps(line["prompt"]), []).append(line[column])
    return [fmean(values) for values in found.values()]
