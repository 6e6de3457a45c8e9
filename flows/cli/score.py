"""`ratchet score`: what a reward model, or another reward, says about responses or pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flows.cli import terminal
from flows.cli.row_progress import RowProgress
from flows.model_use.model_kind import require_kind
from flows.model_use.named_model import NamedModel, find_model
from flows.model_use.row_file import row_file
from flows.model_use.scored_rows import Rows, read_rows
from stages.configs.block import Block, semantic
from stages.configs.data_config import FileDataConfig
from stages.configs.explanation import explain
from stages.configs.model_config import FrozenModelsConfig
from stages.configs.reward_config import RewardConfig, RewardModelRewardConfig, rewards_in
from stages.configs.verifier_config import LengthRewardConfig
from stages.files import read_jsonl
from stages.runtime.sources import digests_of_sources
from stages.runtime.stage_key import digest_of_file, semantic_part
from stages.sampling.rewards import RewardModelUse, build_reward
from training_core.errors import ConfigError
from training_core.models import hub
from training_core.rewards.reward import checked

BATCH_ROWS = 256
"""Rows that are written at once; an interruption loses at most so many."""


class ChosenReward(Block):
    """The reward that a person has chosen."""

    reward: RewardConfig = semantic(..., "The reward.")


def score(
    name: str | None,
    data: Path,
    out: Path,
    *,
    columns: Mapping[str, str],
    reward: Mapping[str, object],
    raw: bool,
    dtype: str,
) -> None:
    """Write the score of each row to a file, and print what all of them say.

    Args:
        name: the reward model, see `find_model`; None if the reward needs none.
        data: file with responses, or pairs.
        out: the file of scores.
        columns: role -> column, where the file has other names.
        reward: fields of the reward, with `name`; empty for the reward model.
        raw: whether a reward model's scores are not normalised.
        dtype: type of the reward model's weights.

    Raises:
        ConfigError: for a wrong option, or if `out` was made with other settings.
        DataError: if rows or model cannot be read.
    """
    terminal.hide_loading_bars()
    chosen = _chosen(reward or {"name": "reward_model", "normalise": not raw})
    model = _model(name, chosen)
    is_model = isinstance(chosen.reward, RewardModelRewardConfig)
    source = FileDataConfig(path=str(data), columns=dict(columns))
    rows = read_rows(source, with_columns=not is_model)
    keys = [{"row": number} for number in range(1, len(rows) + 1)]
    settings = {
        "command": "score",
        "model": model.digest if model else None,
        "data": digest_of_file(data),
        "columns": dict(columns),
        **semantic_part(chosen),
        "sources": digests_of_sources(chosen),
        "dtype": dtype,
    }
    with row_file(out, settings, keys) as file:
        if file.done < len(keys):
            frozen = FrozenModelsConfig.model_validate({"dtype": dtype})
            inputs = {"reward_model": model.directory} if model else {}
            built = build_reward(chosen.reward, inputs, RewardModelUse(frozen=frozen))
            with RowProgress(rows.what, file.done, len(keys)) as progress:

                def make(numbers: range) -> list[dict[str, Any]]:
                    parts = [rows.rollouts(number) for number in numbers]
                    results = iter(built([rollout for part in parts for rollout in part]))
                    lines = [
                        {**keys[i], **rows.line(i, [checked(next(results)) for _ in part])}
                        for i, part in zip(numbers, parts, strict=True)
                    ]
                    progress.advance(numbers.stop - max(numbers.start, file.done))
                    return lines

                file.fill(len(keys), make, batch_rows=BATCH_ROWS)
    _tell(rows, read_jsonl(out), out)


def _chosen(fields: Mapping[str, object]) -> ChosenReward:
    try:
        chosen = ChosenReward.model_validate({"reward": fields})
    except ValidationError as error:
        raise ConfigError(explain(error, ChosenReward)) from error
    if any(isinstance(one, LengthRewardConfig) for one in rewards_in(chosen.reward)):
        raise ConfigError(
            "the reward length counts the tokens of a policy, and rows of a file have only texts; "
            "choose another reward"
        )
    return chosen


def _model(name: str | None, chosen: ChosenReward) -> NamedModel | None:
    """Return the reward model; None if the reward needs none."""
    needs_model = any(isinstance(x, RewardModelRewardConfig) for x in rewards_in(chosen.reward))
    if needs_model == (name is not None):
        if name is None:
            return None
        model = find_model(name, "reward_model")
        require_kind(hub.load_config(model.directory), "reward_model", model.name)
        return model
    expected = "a reward model" if needs_model else "no MODEL"
    raise ConfigError(
        f"the reward {chosen.reward.name} needs {expected}, found {name or 'none'}; "
        "give MODEL, or --reward, or both for a sum with a reward model"
    )


def _tell(rows: Rows, lines: Sequence[Mapping[str, Any]], out: Path) -> None:
    what = rows.what
    reasons = [str(line["reason"]) for line in lines if "reason" in line]
    missing = f"; {len(reasons)} {what} without a score, e.g. {reasons[0]}" if reasons else ""
    terminal.echo(f"{rows.summary(lines)}, {len(lines)} {what}{missing}")
    for detail in rows.details(lines):
        terminal.echo(detail)
    terminal.echo(f"the scores are in {out}")
