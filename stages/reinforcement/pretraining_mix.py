"""Texts beside the experience in every optimizer step of the policy (PPO-ptx)."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from stages import datasets
from stages.batches.encoding import encode_texts
from stages.configs.ppo_config import PpoConfig
from stages.reinforcement.ppo_objectives import aggregate_of
from training_core.data.batching import collate, cut_by_tokens, indices_between
from training_core.data.chat import pad_id
from training_core.objectives.reinforcement import PretrainingBatch
from training_core.types import Example, Experience


class PretrainingMix:
    """Adds micro-batches of texts to optimizer steps of the policy.

        loss = policy loss + coef * mean negative log-likelihood of the texts' tokens

    The policy loss of a step is divided by its count. So the texts' sum is weighted by that count
    over the number of their tokens.

    Args:
        examples: the tokenised texts; each pass over them has its own order.
        config: has coefficient, texts per step, aggregation and seed.
        pad_id: id of the padding token.

    Source:
        Ouyang et al. 2022 (InstructGPT), eq. 2, https://arxiv.org/abs/2203.02155
    """

    def __init__(self, examples: Sequence[Example], config: PpoConfig, *, pad_id: int) -> None:
        self._examples, self._config, self._pad_id = examples, config, pad_id
        self._aggregate = aggregate_of(config)

    def beside(
        self, batches: Sequence[Sequence[Experience]], first_step: int
    ) -> list[list[Experience | PretrainingBatch]]:
        """Return the micro-batches of optimizer steps with those of their texts.

        Args:
            batches: micro-batches of experience of each optimizer step.
            first_step: number of optimizer steps done before.
        """
        return [
            [*batch, *self._texts(batch, first_step + number)]
            for number, batch in enumerate(batches)
        ]

    def _texts(self, batch: Sequence[Experience], step: int) -> list[PretrainingBatch]:
        size = self._config.pretraining_batch_size
        positions = range(step * size, (step + 1) * size)
        indices = indices_between(len(self._examples), positions, seed=self._config.seed)
        texts = [self._examples[i] for i in indices]
        device = batch[0].batch.input_ids.device
        pieces = [
            collate([texts[i] for i in piece], self._pad_id, device)
            for piece in cut_by_tokens([len(t) for t in texts], self._config.micro_batch_tokens)
        ]
        tokens = sum(int(piece.loss_mask.sum()) for piece in pieces)
        count = sum(self._aggregate(e.advantages, e.batch.loss_mask)[1] for e in batch)
        weight = self._config.pretraining_coef * count / tokens
        return [PretrainingBatch(piece, weight) for piece in pieces]


def load_pretraining_mix(
    config: PpoConfig, tokenizer: PreTrainedTokenizerBase
) -> PretrainingMix | None:
    """Load and tokenise the texts that the config names, if it names any."""
    if config.pretraining_data is None:
        return None
    limits = config.rollouts
    examples = encode_texts(
        tokenizer,
        datasets.texts(config.pretraining_data),
        max_tokens=limits.max_tokens,
        unknown_limit=limits.unknown_limit,
    )
    return PretrainingMix(examples, config, pad_id=pad_id(tokenizer))
