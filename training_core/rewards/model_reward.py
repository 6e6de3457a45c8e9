"""Scores from a trained reward model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from training_core.data.batching import collate, cut_by_tokens
from training_core.data.chat import encode_prompt, eos_id, pad_id
from training_core.errors import ConfigError
from training_core.models.hub import freeze, load_scalar_model, load_tokenizer
from training_core.models.scalar_head import sequence_scores
from training_core.rewards.reward import Unscored
from training_core.types import Example, Rollout


class RewardModelReward:
    """Scores rollouts with a sequence classifier of one label.

    Args:
        directory: the reward model.
        normalise: shift and scale by the mean and standard deviation that its training stored in
            its config (`reward_mean`, `reward_std`), so that a coefficient has the same effect with
            every reward model.
        micro_batch_tokens: padded tokens scored at once.
        device: device of the reward model.

    Raises:
        ConfigError: if `normalise` is set and the stored standard deviation is 0.
    """

    def __init__(
        self,
        directory: Path,
        *,
        normalise: bool,
        micro_batch_tokens: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self._model = freeze(load_scalar_model(directory)).to(device)
        self._tokenizer = load_tokenizer(directory)
        self._budget = micro_batch_tokens
        self._device = device
        config = self._model.config
        self._mean = float(getattr(config, "reward_mean", 0.0)) if normalise else 0.0
        self._std = float(getattr(config, "reward_std", 1.0)) if normalise else 1.0
        if not self._std > 0:
            raise ConfigError(
                f"the reward model in {directory} has reward_std {self._std}: it gave every "
                "training response one score, so its rewards cannot be normalised; set "
                "reward.normalise to false, or train it anew"
            )

    @torch.no_grad()
    def __call__(self, rollouts: Sequence[Rollout]) -> list[float | Unscored]:
        """Score `rollouts`; see `Reward`."""
        examples = [self._example(r) for r in rollouts]
        scores: list[float | Unscored] = [Unscored("not reached")] * len(rollouts)
        for rows in cut_by_tokens([len(e) for e in examples], self._budget):
            batch = collate([examples[i] for i in rows], pad_id(self._tokenizer), self._device)
            for i, raw in zip(rows, sequence_scores(self._model, batch).tolist(), strict=True):
                scores[i] = (raw - self._mean) / self._std
        return scores

    def _example(self, rollout: Rollout) -> Example:
        """Return the sampled ids if both models share a tokenizer, else tokenise the text again."""
        prompt = encode_prompt(self._tokenizer, rollout.prompt.id, rollout.prompt.messages)
        if prompt.input_ids == rollout.prompt.input_ids:
            return rollout.example()
        ids = self._tokenizer(rollout.text, add_special_tokens=False).input_ids
        end = [eos_id(self._tokenizer)] if rollout.is_finished else []
        response = (*ids, *end)
        return Example(
            prompt.input_ids + response, (0,) * len(prompt.input_ids) + (1,) * len(response)
        )
