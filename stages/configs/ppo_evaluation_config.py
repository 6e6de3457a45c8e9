"""The evaluation on held-out prompts while the stage `ppo` trains.

Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from stages.configs.block import Block, semantic
from stages.configs.data_config import DataConfig
from stages.configs.reward_config import RewardConfig
from stages.configs.sampling_config import MAX_GROUP_SIZE

REWARD = "heldout_reward"
JUDGE_REWARD = "heldout_judge_reward"


def pass_metric(k: int) -> str:
    """Return the name of the metric pass@k."""
    return f"heldout_pass_at_{k}"


class HeldOutPromptsConfig(Block):
    """One dataset of held-out prompts, whose metrics are also reported by themselves."""

    label: str = semantic(
        "all",
        "Name of the dataset in metrics, e.g. `heldout_gsm8k_reward` for gsm8k.",
        pattern=r"^[a-z][a-z0-9_]*$",
    )
    data: DataConfig = semantic(..., "Prompts that the stage does not train on.")


class PpoJudgeConfig(Block):
    """A reward that the policy is not optimised for; it scores the same held-out responses."""

    reward: RewardConfig = semantic(
        ..., "A reward that is neither the training reward nor a part of it."
    )
    when_parted: Literal["warn", "stop"] = semantic(
        "warn",
        "What to do once the held-out reward has risen while the judge's has fallen beyond noise: "
        "warn and go on, or end the training there.",
    )


class PpoEvaluationConfig(Block):
    """Responses to held-out prompts every N rounds, and the checkpoint that is best by them."""

    every: int = semantic(
        10,
        "Rounds between evaluations; the policy is also evaluated before the first round and after "
        "the last one.",
        gt=0,
    )
    prompts: tuple[HeldOutPromptsConfig, ...] = semantic(
        ..., "Datasets of held-out prompts.", min_length=1
    )
    exclude: DataConfig | None = semantic(
        None,
        "Data whose prompts are left out of `prompts`, word for word, e.g. the training prompts if "
        "they have some of them.",
    )
    samples_per_prompt: int = semantic(1, "Responses per prompt.", gt=0, le=MAX_GROUP_SIZE)
    temperature: float | None = semantic(
        None,
        "Temperature of these responses; 0 always takes the most likely token, None uses that of "
        "`rollouts`.",
        ge=0,
    )
    pass_at: tuple[Annotated[int, Field(gt=0)], ...] = semantic(
        (), "Each k of pass@k, the chance that one of k responses passes; at most the samples."
    )
    pass_reward: float = semantic(
        1.0, "Lowest reward with which a response passes; rewards of right answers are 1."
    )
    judge: PpoJudgeConfig | None = semantic(
        None, "Watches for over-optimisation of the training reward; None watches nothing."
    )
    best_metric: str = semantic(
        None,
        "Metric by which checkpoints are compared; the highest value is best. None: "
        f"{JUDGE_REWARD} with a judge, {REWARD} without.",
        validate_default=True,
    )
    export: Literal["best", "last"] = semantic(
        "best", "Which evaluated weights become the artifact."
    )

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics over all prompts."""
        judged = [] if self.judge is None else [JUDGE_REWARD]
        return [REWARD, *judged, *(pass_metric(k) for k in self.pass_at)]

    @field_validator("best_metric", mode="before")
    @classmethod
    def _is_of_the_judge_if_unset(cls, value: object, info: ValidationInfo) -> object:
        if value is not None:
            return value
        return REWARD if info.data.get("judge") is None else JUDGE_REWARD

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Refuse what cannot be measured."""
        if problems := [*self._problems()]:
            raise ValueError("; ".join(problems))
        return self

    def _problems(self) -> Iterator[str]:
        labels = [source.label for source in self.prompts]
        if twice := sorted({label for label in labels if labels.count(label) > 1}):
            yield f"prompts: expected different labels, found {twice[0]!r} twice; set `label`"
        if too_many := [k for k in self.pass_at if k > self.samples_per_prompt]:
            yield (
                f"pass_at: {too_many[0]} responses are more than samples_per_prompt="
                f"{self.samples_per_prompt}; raise samples_per_prompt"
            )
        if self.temperature == 0 and self.samples_per_prompt > 1:
            yield (
                "temperature 0 gives one response again and again, found samples_per_prompt="
                f"{self.samples_per_prompt}; set it to 1, or raise temperature"
            )
        if self.best_metric not in self.metrics:
            near = get_close_matches(self.best_metric, self.metrics, n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            yield (
                f"best_metric: no metric '{self.best_metric}' is measured; {hint}there are: "
                f"{', '.join(self.metrics)}"
            )
