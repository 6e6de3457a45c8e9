"""Scores from a trained reward model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from training_core.data.batching import collate, cut_by_tokens
from training_core.data.chat import decode, encode_prompt, eos_id, tokenise
from training_core.dist_info import SINGLE_PROCESS, DistInfo
from training_core.distributed import all_gather_object
from training_core.errors import ConfigError, DataError
from training_core.models.hub import freeze, load_scalar_model, load_tokenizer
from training_core.models.offloading import FrozenWeights
from training_core.models.options import LoadOptions
from training_core.models.parts import scalar_head
from training_core.models.scalar_head import reward_scale, sequence_scores
from training_core.rewards.reward import Unscored
from training_core.types import Example, Rollout


class RewardModelReward:
    """Scores rollouts with a sequence classifier of one label.

    Args:
        directory: the reward model, or its hub id.
        revision: commit of a hub id.
        normalise: shift and scale by the mean and standard deviation that its training stored in
            its config (`reward_mean`, `reward_std`), so that a coefficient has the same effect with
            every reward model.
        micro_batch_tokens: padded tokens scored at once.
        device: where the reward model computes.
        options: dtype of the reward model; None loads it in float32.
        offload: whether it is in CPU memory between two calls.
        divided_by: ranks that divide the weights, and call this together, each with rollouts of its
            own; None: this process has all weights.

    Raises:
        ConfigError: if `normalise` is set and the stored standard deviation is 0; if the tokenizer
            has no chat template.
        DataError: if the model has no trained head, i.e. gives every response the score 0.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        revision: str | None = None,
        normalise: bool,
        micro_batch_tokens: int,
        device: torch.device | str = "cpu",
        options: LoadOptions | None = None,
        offload: bool = False,
        divided_by: DistInfo | None = None,
    ) -> None:
        model = freeze(load_scalar_model(directory, revision=revision, options=options))
        self._device = torch.device(device)
        self._tokenizer = load_tokenizer(directory, revision)
        if not scalar_head(model).weight.any():
            raise DataError(
                f"expected a reward model in {directory}, found a model whose head is zero or "
                "missing; give the directory of a trained sequence classifier"
            )
        if not self._tokenizer.chat_template:
            raise ConfigError(
                f"the tokenizer of the reward model in {directory} has no chat template, so no "
                "prompt can be rendered for it; add one to its tokenizer_config.json"
            )
        self._ranks = divided_by or SINGLE_PROCESS
        self._weights = FrozenWeights(model, self._device, offload=offload, divided_by=divided_by)
        self._budget = micro_batch_tokens
        self._mean, self._std = reward_scale(model) if normalise else (0.0, 1.0)

    @torch.no_grad()
    def __call__(self, rollouts: Sequence[Rollout]) -> list[float | Unscored]:
        """Score `rollouts`; see `Reward`."""
        examples = [self._example(r) for r in rollouts]
        scores: list[float | Unscored] = [Unscored("not reached")] * len(rollouts)
        cuts = cut_by_tokens([len(e) for e in examples], self._budget)
        if self._weights.computes_together:  # the last ones have the shortest examples
            cuts += cuts[-1:] * (max(all_gather_object(len(cuts), self._ranks)) - len(cuts))
        with self._weights.at_work():
            for rows in cuts:
                # Padding is never read, and a model from elsewhere may have no token for it.
                batch = collate([examples[i] for i in rows], eos_id(self._tokenizer), self._device)
                found = self._weights.compute(sequence_scores, batch).tolist()
                for i, raw in zip(rows, found, strict=True):
                    scores[i] = (raw - self._mean) / self._std
        return scores

    def _example(self, rollout: Rollout) -> Example:
        """Return the sampled ids if they mean the same here, else tokenise the text again."""
        prompt = encode_prompt(self._tokenizer, rollout.prompt.id, rollout.prompt.messages)
        if prompt.input_ids == rollout.prompt.input_ids and self._reads_as_sampled(rollout):
            return rollout.example()
        (ids,) = tokenise(self._tokenizer, [rollout.text], as_text=True)
        end = (eos_id(self._tokenizer),) if rollout.is_finished else ()
        response = (*ids, *end)
        return Example(
            prompt.input_ids + response, (0,) * len(prompt.input_ids) + (1,) * len(response)
        )

    def _reads_as_sampled(self, rollout: Rollout) -> bool:
        """Tell whether the reward model's tokenizer reads the sampled ids as the sampled text."""
        ids = rollout.response_ids
        has_end = ids[-1:] == (eos_id(self._tokenizer),)
        return has_end == rollout.is_finished and decode(self._tokenizer, ids) == rollout.text
