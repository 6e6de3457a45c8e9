"""Models of PPO as plain classes, independent of stage and config.

Shapes: B sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from training_core.data.batching import cut_by_tokens
from training_core.engine.protocol import TrainEngine
from training_core.loop import Objective, train_steps
from training_core.models.causal_lm import logprobs
from training_core.models.scalar_head import token_values
from training_core.types import Batch, Experience


class FrozenModel:
    """A model without training: computes one number per token, [B, T], in micro-batches.

    Args:
        model: on its device.
        ask: (model, batch) -> [B, T], zero outside the loss mask.
        micro_batch_tokens: padded tokens in a micro-batch, at most.
    """

    def __init__(
        self, model: nn.Module, ask: Callable[[nn.Module, Batch], Tensor], micro_batch_tokens: int
    ) -> None:
        self._model, self._ask, self._budget = model, ask, micro_batch_tokens

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Tensor:
        """Compute the numbers for every sequence of `batch`."""
        answers = torch.zeros(
            batch.input_ids.shape, dtype=torch.float32, device=batch.input_ids.device
        )
        lengths = batch.attention_mask.sum(dim=1).tolist()
        for cut in cut_by_tokens(lengths, self._budget):
            width = max(lengths[i] for i in cut)
            rows = Batch(
                batch.input_ids[cut, :width],
                batch.attention_mask[cut, :width],
                batch.loss_mask[cut, :width],
            )
            answers[cut, :width] = self._ask(self._model, rows)
        return answers


class Learner:
    """A model that is trained on experience: the policy or the critic.

    Args:
        engine: contains the model.
        objective: its loss on a micro-batch of experience.
        micro_batch_tokens: padded tokens in a micro-batch, at most.
    """

    def __init__(
        self, engine: TrainEngine, objective: Objective[Experience], micro_batch_tokens: int
    ) -> None:
        self.engine = engine
        self._objective = objective
        self._budget = micro_batch_tokens

    @property
    def model(self) -> nn.Module:
        """The trained model."""
        return self.engine.model

    def update(
        self, experience: Experience, minibatches: Sequence[Sequence[int]], first_step: int
    ) -> Mapping[str, float]:
        """Run one optimizer step per minibatch.

        Args:
            experience: experience of a round.
            minibatches: rows of each optimizer step.
            first_step: number of optimizer steps done before.

        Returns:
            The metrics, averaged over the steps.
        """
        batches = [self._cut(experience, rows) for rows in minibatches]
        reports = list(train_steps(self.engine, self._objective, batches, first_step=first_step))
        names = ("loss", "grad_norm", "learning_rate")
        flat = [{**{n: getattr(r, n) for n in names}, **r.metrics} for r in reports]
        return {name: sum(r[name] for r in flat) / len(flat) for name in flat[0]}

    def _cut(self, experience: Experience, rows: Sequence[int]) -> list[Experience]:
        lengths = experience.batch.attention_mask.sum(dim=1)[list(rows)].tolist()
        cuts = cut_by_tokens(lengths, self._budget)
        return [experience.rows(torch.tensor([rows[i] for i in cut])) for cut in cuts]


def policy_logprobs(model: nn.Module, temperature: float, budget_tokens: int) -> FrozenModel:
    """Build a model that returns log-probabilities at the sampling temperature."""
    return FrozenModel(model, lambda m, b: logprobs(m, b, temperature=temperature), budget_tokens)


def critic_values(model: nn.Module, budget_tokens: int) -> FrozenModel:
    """Build a model that returns values."""
    return FrozenModel(model, token_values, budget_tokens)
