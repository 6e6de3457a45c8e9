"""Evaluation of the policy on held-out prompts, between two rounds of PPO."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from transformers import PreTrainedTokenizerBase

from stages.configs.ppo_config import PpoConfig
from stages.configs.ppo_evaluation_config import (
    JUDGE_REWARD,
    REWARD,
    PpoEvaluationConfig,
    pass_metric,
)
from stages.configs.training_config import BestMetricConfig
from stages.datasets import PromptRow, prompts
from stages.datasets.configured import answered_prompt_keys, prompt_key, prompts_without
from stages.reinforcement.overoptimisation import JudgedPolicy, Overoptimisation
from stages.sampling.intervals import mean_interval, share_interval
from stages.sampling.rollouts import encode_rows, sample_groups, sampling_of
from stages.training.best_checkpoint import BestCheckpoint
from stages.training.checkpointing import Part
from training_core.algorithms.pass_at_k import pass_at_k
from training_core.errors import DataError
from training_core.rewards.reward import Reward, score
from training_core.rollout.engine import RolloutEngine
from training_core.types import Prompt, Rollout

SEED = 100_002
"""Number of this sampling among those of a seed; the rounds count theirs from 0."""
SHOWN = 80
"""Characters of a prompt in an error message."""
Interval = Callable[[Sequence[float]], tuple[float, float] | None]
RewardsByPrompt = Mapping[str, Sequence[float]]
"""Rewards of the scored responses of each prompt, by the prompt's id."""
RewardDescription = Callable[[Sequence[Sequence[float]], str], dict[str, float]]
"""(rewards of each prompt, prefix of the names) -> metrics."""


@dataclass(frozen=True)
class HeldOutPrompts:
    """The prompts of all datasets, and the label of each prompt's dataset by the prompt's id."""

    evaluation: PpoEvaluationConfig
    prompts: Sequence[Prompt]
    labels: Mapping[str, str]


def load_held_out(config: PpoConfig, tokenizer: PreTrainedTokenizerBase) -> HeldOutPrompts | None:
    """Load and tokenise the held-out prompts.

    Returns:
        None if the config has no block `evaluation`.

    Raises:
        DataError: if the stage trains on one of them; see also `encode_rows`.
    """
    evaluation = config.evaluation
    if evaluation is None:
        return None
    rows: list[PromptRow] = []
    labels: list[str] = []
    for source in evaluation.prompts:
        found = prompts_without(source.data, evaluation.exclude)
        rows += found
        labels += [source.label] * len(found)
    _require_unseen(rows, config)
    numbered = {str(number): label for number, label in enumerate(labels, 1)}
    return HeldOutPrompts(evaluation, encode_rows(rows, tokenizer, config.rollouts), numbered)


def _require_unseen(rows: Sequence[PromptRow], config: PpoConfig) -> None:
    held_out = {prompt_key(row) for row in rows}
    trained = {key for row in prompts(config.prompts) for key in answered_prompt_keys(row)}
    if shared := sorted(held_out & trained):
        raise DataError(
            f"{len(shared)} of {len(held_out)} different prompts of evaluation.prompts are also in "
            f"prompts, word for word, e.g. {shared[0]:.{SHOWN}}; choose other prompts, or leave "
            "the shared ones out with evaluation.exclude"
        )


@dataclass(frozen=True)
class HeldOutJudge:
    """What watches for over-optimisation.

    Attributes:
        reward: scores the held-out responses, and is not optimised.
        distance: KL of rollouts to the reference in nats per response; None without a reference.
    """

    reward: Reward
    distance: Callable[[Sequence[Rollout]], float] | None


class HeldOutEvaluation:
    """Evaluates the policy whose weights the engine has, always with the same seeds.

    So two evaluations differ only by the weights. No state of the training changes.

    Args:
        config: of the stage.
        held_out: the prompts.
        engine: samples the responses.
        reward: scores the responses.
        judge: scores them, too; None watches nothing.

    Attributes:
        best: the best evaluation after a round so far.
        overoptimisation: whether reward and judge have parted; None without a judge.
    """

    def __init__(
        self,
        config: PpoConfig,
        held_out: HeldOutPrompts,
        engine: RolloutEngine,
        reward: Reward,
        judge: HeldOutJudge | None = None,
    ) -> None:
        evaluation = held_out.evaluation
        self._config, self._evaluation = config, evaluation
        self._engine, self._held_out, self._reward = engine, held_out, reward
        sampling = sampling_of(config.rollouts)
        if evaluation.temperature is not None:
            sampling = replace(sampling, temperature=evaluation.temperature)
        self._sampling = sampling
        rule = BestMetricConfig(metric=evaluation.best_metric, better="max")
        self.best = BestCheckpoint(rule)
        self._judge, self.overoptimisation = judge, None
        if evaluation.judge is not None:
            times = 1 + math.ceil(config.steps / evaluation.every)
            stops = evaluation.judge.when_parted == "stop"
            self.overoptimisation = Overoptimisation(times, stops=stops)

    @property
    def parts(self) -> dict[str, Part]:
        """What goes into every checkpoint, by name."""
        if self.overoptimisation is None:
            return {"best": self.best}
        return {"best": self.best, "overoptimisation": self.overoptimisation}

    @property
    def ends_at(self) -> int | None:
        """The round after which the training ends early; None: it goes on."""
        return None if self.overoptimisation is None else self.overoptimisation.ends_at

    def is_due(self, done: int) -> bool:
        """Whether to evaluate after so many rounds: 0, every `every`-th, and the last."""
        return done % self._evaluation.every == 0 or done == self._config.steps

    def measure(self, done: int) -> dict[str, float]:
        """Sample and score responses with the engine's present weights, after `done` rounds.

        Returns:
            `heldout_reward` and each `heldout_pass_at_<k>`, with the ends `…_low` and `…_high` of
            its 95 % interval; with several datasets also `heldout_<label>_reward`, …;
            `heldout_tokens`, the sampled tokens. With a judge also `heldout_judge_reward` and its
            ends, `heldout_kl` (nats per response, if there is a reference and the temperature is
            that of the training) and `heldout_parted` (1 if reward and judge have parted).
        """
        groups = sample_groups(
            self._engine,
            self._held_out.prompts,
            self._sampling,
            group_size=self._evaluation.samples_per_prompt,
            seed=self._config.seed * 100_003 + SEED,
        )
        rollouts = [rollout for group in groups for rollout in group]
        rewards = self._rewards(self._reward, rollouts)
        metrics = self._described(
            rewards, lambda found, prefix: describe(found, self._evaluation, prefix)
        )
        if self._judge is not None:
            metrics |= self._judged(self._judge, rollouts, rewards, done)
        return {**metrics, "heldout_tokens": float(sum(len(r.response_ids) for r in rollouts))}

    def _rewards(self, reward: Reward, rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
        by_id: dict[str, list[float]] = {}
        for s in score(reward, rollouts, unscored_limit=self._config.unscored_limit):
            by_id.setdefault(s.rollout.prompt.id, []).append(s.reward)
        return by_id

    def _described(
        self, rewards: RewardsByPrompt, describe_one: RewardDescription
    ) -> dict[str, float]:
        """Describe the rewards of all datasets together, and of each if there are several."""
        labels = self._held_out.labels
        metrics = describe_one([*rewards.values()], "heldout_") if rewards else {}
        if len(self._evaluation.prompts) == 1:
            return metrics
        for label in dict.fromkeys(labels[id_] for id_ in rewards):
            found = [each for id_, each in rewards.items() if labels[id_] == label]
            metrics |= describe_one(found, f"heldout_{label}_")
        return metrics

    def _judged(
        self, judge: HeldOutJudge, rollouts: Sequence[Rollout], rewards: RewardsByPrompt, done: int
    ) -> dict[str, float]:
        """Score the responses with the judge, and compare what it says with the rewards."""
        judged = self._rewards(judge.reward, rollouts)
        metrics = self._described(judged, describe_judge)
        if judge.distance is not None:
            metrics["heldout_kl"] = judge.distance(rollouts)
        if self.overoptimisation is not None and rewards and judged:
            of_judge = {id_: fmean(each) for id_, each in judged.items()}
            reward = fmean(fmean(each) for each in rewards.values())
            has_parted = self.overoptimisation.takes(JudgedPolicy(done, reward, of_judge))
            metrics["heldout_parted"] = float(has_parted)
        return metrics


def describe(
    rewards: Sequence[Sequence[float]], evaluation: PpoEvaluationConfig, prefix: str = "heldout_"
) -> dict[str, float]:
    """Describe the rewards of some prompts: their mean and pass@k, each with its interval.

    Args:
        rewards: of each prompt's scored responses. A prompt with fewer than k counts in no pass@k.
        evaluation: says what passes, and each k.
        prefix: replaces `heldout_` in the names.
    """
    metrics = _with_interval(REWARD, [fmean(each) for each in rewards], mean_interval)
    passed = [(len(each), sum(r >= evaluation.pass_reward for r in each)) for each in rewards]
    for k in evaluation.pass_at:
        if estimates := [pass_at_k(n, c, k=k) for n, c in passed if n >= k]:
            metrics |= _with_interval(pass_metric(k), estimates, share_interval)
    return {prefix + name.removeprefix("heldout_"): value for name, value in metrics.items()}


def describe_judge(rewards: Sequence[Sequence[float]], prefix: str) -> dict[str, float]:
    """Describe what a judge says: its mean over the prompts with its interval; see `describe`."""
    metrics = _with_interval(JUDGE_REWARD, [fmean(each) for each in rewards], mean_interval)
    return {prefix + name.removeprefix("heldout_"): value for name, value in metrics.items()}


def _with_interval(name: str, values: Sequence[float], interval: Interval) -> dict[str, float]:
    ends = interval(values)
    found = {} if ends is None else {f"{name}_low": ends[0], f"{name}_high": ends[1]}
    return {name: fmean(values), **found}
