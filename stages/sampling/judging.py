"""Sample responses of several policies to the same prompts, and score them for an evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from stages.configs.evaluation_config import EvaluationConfig
from stages.configs.reward_service_config import PairwiseJudgeConfig
from stages.configs.sampling_config import RolloutConfig, TruncatedRolloutConfig
from stages.contract import Context, Inputs
from stages.datasets import PromptRow
from stages.sampling.rewards import RewardModelUse, build_reward, pairwise_judge
from stages.sampling.rollouts import (
    encode_rows,
    open_engine,
    sample_groups,
    sampling_of,
    verify_engine,
)
from stages.training.engines import best_device
from training_core.data import chat
from training_core.data.batching import collate, cut_by_tokens
from training_core.dist_info import SINGLE_PROCESS
from training_core.models import hub
from training_core.models.causal_lm import logprobs
from training_core.models.offloading import FrozenWeights
from training_core.rewards.judge import PairwiseJudge
from training_core.rewards.reward import RewardResult, score
from training_core.rollout.engine import RolloutEngine, sync
from training_core.types import Prompt, Rollout, ScoredRollout


@dataclass(frozen=True)
class Judged:
    """The scored responses of one policy.

    Attributes:
        scored: rollouts with rewards, in the order of the prompts.
        kl_to_baseline: mean over responses of log(policy / baseline), in nats; None if the two
            policies tokenise differently, since their log-probabilities are of other tokens, and if
            the sampling is truncated or greedy, since the mean is over the policy's own samples.
    """

    scored: Sequence[ScoredRollout]
    kl_to_baseline: float | None


@dataclass(frozen=True)
class LoadedPolicy:
    """A policy with its tokenizer, and the prompts in the form that its chat template gives.

    Attributes:
        directory: where it was loaded from.
        weights: its weights, frozen.
        tokenizer: its tokenizer.
        prompts: those that leave room for a response.
    """

    directory: Path
    weights: FrozenWeights
    tokenizer: PreTrainedTokenizerBase
    prompts: Sequence[Prompt]

    @classmethod
    def load(
        cls, directory: Path, rows: Sequence[PromptRow], config: EvaluationConfig
    ) -> LoadedPolicy:
        """Load a policy and encode the prompts for it."""
        tokenizer, frozen = hub.load_tokenizer(directory), config.frozen_models
        prompts = encode_rows(rows, tokenizer, config.rollouts)
        model = hub.freeze(hub.load_policy(directory, options=frozen.load_options()))
        by = SINGLE_PROCESS if frozen.shard else None
        weights = FrozenWeights(model, best_device(), offload=frozen.offload, divided_by=by)
        return cls(directory, weights, tokenizer, prompts)

    def tokenises_like(self, other: LoadedPolicy) -> bool:
        """Whether both have the same vocabulary, end token and ids of every prompt."""
        mine, theirs = self.tokenizer, other.tokenizer
        return (
            [p.input_ids for p in self.prompts] == [p.input_ids for p in other.prompts]
            and chat.eos_id(mine) == chat.eos_id(theirs)
            and mine.get_vocab() == theirs.get_vocab()
        )

    def fits_engine_of(self, other: LoadedPolicy) -> bool:
        """Whether an engine that was opened for `other` can take this policy's weights."""
        shapes, others = (
            {name: weight.shape for name, weight in policy.weights.model.named_parameters()}
            for policy in (self, other)
        )
        return shapes == others and self.tokenises_like(other)


def judge_policies(
    config: EvaluationConfig, inputs: Inputs, rows: Sequence[PromptRow], context: Context
) -> dict[str, Judged]:
    """Score all input policies. Each is prompted with its own tokenizer and chat template.

    Policies of the same shape that tokenise alike share one engine, which loads their weights one
    after the other.

    Args:
        config: reward, sampling and seed.
        inputs: the policies, and the reward model if the reward needs one.
        rows: the prompts.
        context: receives the progress.

    Returns:
        The scored responses by name: `baseline`, `policy`, and `<name>` for each role
        `policy_<name>`.
    """
    directories = _policies(inputs)
    judge = _judge_of(config, inputs)
    baseline = LoadedPolicy.load(directories["baseline"], rows, config)
    opened, engine = baseline, _engine_for(baseline, config.rollouts, context)
    judged: dict[str, Judged] = {}
    opponents: Sequence[Rollout] = ()
    for done, (name, directory) in enumerate(directories.items(), 1):
        is_baseline = directory == baseline.directory
        policy = baseline if is_baseline else LoadedPolicy.load(directory, rows, config)
        if not policy.fits_engine_of(opened):
            engine.close()
            opened, engine = policy, _engine_for(policy, config.rollouts, context)
        with policy.weights.at_work() as model:
            sync(engine, model, done)
        rollouts = _rollouts_of(policy, engine, config)
        opponents = rollouts if is_baseline else opponents
        scored = judge(rollouts, opponents)
        judged[name] = Judged(scored, _kl(policy, baseline, rollouts, config.rollouts))
        context.sink.progress(done, len(directories), f"judged {name}")
    engine.close()
    return judged


def _judge_of(
    config: EvaluationConfig, inputs: Inputs
) -> Callable[[Sequence[Rollout], Sequence[Rollout]], list[ScoredRollout]]:
    """Return (rollouts, those of the baseline) -> scored rollouts."""
    limit = config.unscored_limit
    if isinstance(config.reward, PairwiseJudgeConfig):
        judge = pairwise_judge(config.reward)
        return lambda ours, theirs: _compared(judge, ours, theirs, limit)
    reward = build_reward(config.reward, inputs, RewardModelUse(frozen=config.frozen_models))
    return lambda rollouts, _: score(reward, rollouts, unscored_limit=limit)


def _compared(
    judge: PairwiseJudge,
    ours: Sequence[Rollout],
    theirs: Sequence[Rollout],
    unscored_limit: float,
) -> list[ScoredRollout]:
    """Score each response against the baseline's of the same prompt and place in the group.

    A prompt that one of the two policies has no room for is left out.
    """
    opponents, mine = _by_place(theirs), _by_place(ours)
    both = [place for place in mine if place in opponents]

    def against_baseline(rollouts: Sequence[Rollout]) -> Sequence[RewardResult]:
        return judge.compare(rollouts, [opponents[place] for place in both])

    return score(against_baseline, [mine[place] for place in both], unscored_limit=unscored_limit)


def _by_place(rollouts: Sequence[Rollout]) -> dict[tuple[str, int], Rollout]:
    """Return rollouts by prompt and number among those of the prompt."""
    counts: Counter[str] = Counter()
    found = {}
    for rollout in rollouts:
        found[rollout.prompt.id, counts[rollout.prompt.id]] = rollout
        counts[rollout.prompt.id] += 1
    return found


def _policies(inputs: Inputs) -> dict[str, Path]:
    further = {
        role.removeprefix("policy_"): path
        for role, path in inputs.items()
        if role.startswith("policy_")
    }
    return {"baseline": inputs["baseline"], **further, "policy": inputs["policy"]}


def _engine_for(policy: LoadedPolicy, rollouts: RolloutConfig, context: Context) -> RolloutEngine:
    with policy.weights.at_work() as model:
        return open_engine(rollouts, policy.directory, model, policy.tokenizer, context.cluster)


def _rollouts_of(
    policy: LoadedPolicy, engine: RolloutEngine, config: EvaluationConfig
) -> list[Rollout]:
    groups = sample_groups(
        engine,
        policy.prompts,
        sampling_of(config.rollouts),
        group_size=config.responses_per_prompt,
        seed=config.seed,
    )
    rollouts = [rollout for group in groups for rollout in group]
    pad_id = chat.pad_id(policy.tokenizer)
    verify_engine(engine, policy.weights, rollouts, config.rollouts, pad_id)
    return rollouts


@torch.no_grad()
def _kl(
    policy: LoadedPolicy,
    baseline: LoadedPolicy,
    rollouts: Sequence[Rollout],
    sampled: TruncatedRolloutConfig,
) -> float | None:
    if not policy.tokenises_like(baseline) or not sampling_of(sampled).is_whole:
        return None
    pad_id = chat.pad_id(policy.tokenizer)
    examples = [r.example() for r in rollouts]
    total = 0.0
    function, ours = partial(logprobs, temperature=sampled.temperature), policy.weights
    with ours.at_work(), baseline.weights.at_work():
        for cut in cut_by_tokens([len(e) for e in examples], 8192):
            batch = collate([examples[i] for i in cut], pad_id, ours.device)
            mine = ours.compute(function, batch)
            other = baseline.weights.compute(function, batch)
            total += float((mine - other).sum())
    return total / len(rollouts)
