"""Evaluation of the policy on held-out prompts, between two rounds of PPO."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from transformers import PreTrainedTokenizerBase

from stages.configs.ppo_config import PpoConfig
from stages.configs.ppo_evaluation_config import REWARD, PpoEvaluationConfig, pass_metric
from stages.configs.training_config import BestMetricConfig
from stages.datasets import PromptRow, prompts
from stages.datasets.configured import answered_prompt_keys, prompt_key, prompts_without
from stages.sampling.intervals import mean_interval, share_interval
from stages.sampling.rollouts import encode_rows, sample_groups, sampling_of
from stages.training.best_checkpoint import BestCheckpoint
from training_core.algorithms.pass_at_k import pass_at_k
from training_core.errors import DataError
from training_core.rewards.reward import Reward, score
from training_core.rollout.engine import RolloutEngine
from training_core.types import Prompt

SEED = 100_002
"""Number of this sampling among those of a seed; the rounds count theirs from 0."""
SHOWN = 80
"""Characters of a prompt in an error message."""
Interval = Callable[[Sequence[float]], tuple[float, float] | None]


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


class HeldOutEvaluation:
    """Evaluates the policy whose weights the engine has, always with the same seeds.

    So two evaluations differ only by the weights. No state of the training changes.

    Args:
        config: of the stage.
        held_out: the prompts.
        engine: samples the responses.
        reward: scores the responses.

    Attributes:
        best: the best evaluation after a round so far; saved with every checkpoint.
    """

    def __init__(
        self,
        config: PpoConfig,
        held_out: HeldOutPrompts,
        engine: RolloutEngine,
        reward: Reward,
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

    def is_due(self, done: int) -> bool:
        """Whether to evaluate after so many rounds: 0, every `every`-th, and the last."""
        return done % self._evaluation.every == 0 or done == self._config.steps

    def measure(self) -> dict[str, float]:
        """Sample and score responses with the engine's present weights.

        Returns:
            `heldout_reward` and each `heldout_pass_at_<k>`, with the ends `…_low` and `…_high` of
            its 95 % interval; with several datasets also `heldout_<label>_reward`, …;
            `heldout_tokens`, the sampled tokens.
        """
        evaluation = self._evaluation
        groups = sample_groups(
            self._engine,
            self._held_out.prompts,
            self._sampling,
            group_size=evaluation.samples_per_prompt,
            seed=self._config.seed * 100_003 + SEED,
        )
        rollouts = [rollout for group in groups for rollout in group]
        scored = score(self._reward, rollouts, unscored_limit=self._config.unscored_limit)
        by_label: dict[str, dict[str, list[float]]] = {}
        for s in scored:
            id_ = s.rollout.prompt.id
            of_dataset = by_label.setdefault(self._held_out.labels[id_], {})
            of_dataset.setdefault(id_, []).append(s.reward)
        every_prompt = [rewards for found in by_label.values() for rewards in found.values()]
        metrics = describe(every_prompt, evaluation) if every_prompt else {}
        if len(evaluation.prompts) > 1:
            for label, found in by_label.items():
                metrics |= describe(list(found.values()), evaluation, f"heldout_{label}_")
        return {**metrics, "heldout_tokens": float(sum(len(r.response_ids) for r in rollouts))}


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


def _with_interval(name: str, values: Sequence[float], interval: Interval) -> dict[str, float]:
    ends = interval(values)
    found = {} if ends is None else {f"{name}_low": ends[0], f"{name}_high": ends[1]}
    return {name: fmean(values), **found}
