"""Models of PPO as plain classes, independent of stage and config.

Shapes: B sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from stages.training.shares import own_share
from training_core.data.batching import WithoutLoss, cut_by_tokens, share_of_rank
from training_core.dist_info import SINGLE_PROCESS, DistInfo
from training_core.distributed import sum_over_ranks
from training_core.ema import WeightAverage
from training_core.engine.protocol import TrainEngine
from training_core.loop import Objective, train_steps
from training_core.models.causal_lm import logprobs
from training_core.models.computing import Computing
from training_core.models.offloading import FrozenWeights
from training_core.models.parts import TrainedPart, has_adapter
from training_core.models.scalar_head import sequence_scores, token_values
from training_core.types import Batch, Experience, MicroBatch

M = TypeVar("M", bound=MicroBatch)


class FrozenModel:
    """A model without training: computes one number per token, [B, T], in micro-batches.

    Args:
        model: whose weights are at hand when this is called.
        forward: (model, batch) -> [B, T], zero outside the loss mask.
        micro_batch_tokens: padded tokens in a micro-batch, at most.
        dist_info: this process; every rank has the model, and computes its share of the rows.
    """

    def __init__(
        self,
        model: Computing,
        forward: Callable[[Any, Batch], Tensor],
        micro_batch_tokens: int,
        dist_info: DistInfo = SINGLE_PROCESS,
    ) -> None:
        self._model, self._forward, self._budget = model, forward, micro_batch_tokens
        self._dist_info = dist_info

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Tensor:
        """Return one value per token, [B, T], e.g. its log-probability; the same on every rank."""
        outputs = torch.zeros(
            batch.input_ids.shape, dtype=torch.float32, device=batch.input_ids.device
        )
        lengths = batch.attention_mask.sum(dim=1).tolist()
        ranks = self._dist_info
        cuts = cut_by_tokens(lengths, self._budget, world_size=ranks.world_size)
        costs = [len(cut) * max(lengths[i] for i in cut) for cut in cuts]
        even = self._model.computes_together
        for share in share_of_rank(cuts, costs, ranks.rank, ranks.world_size, even=even):
            cut = share.micro_batch if isinstance(share, WithoutLoss) else share
            width = max(lengths[i] for i in cut)
            rows = Batch(
                batch.input_ids[cut, :width],
                batch.attention_mask[cut, :width],
                batch.loss_mask[cut, :width],
            )
            found = self._model.compute(self._forward, rows)
            if not isinstance(share, WithoutLoss):
                outputs[cut, :width] = found
        return sum_over_ranks(outputs, ranks)  # each row is zero on all ranks but one


class Learner:
    """A model that is trained on experience: the policy or the critic.

    Args:
        engine: contains the model.
        average: is updated after every optimizer step, if there is one.
        dist_info: this process.
    """

    def __init__(
        self,
        engine: TrainEngine,
        average: WeightAverage | None = None,
        dist_info: DistInfo = SINGLE_PROCESS,
    ) -> None:
        self.engine = engine
        self.average = average
        self._dist_info = dist_info

    @property
    def model(self) -> nn.Module:
        """The trained model."""
        return self.engine.model

    @property
    def saved(self) -> nn.Module:
        """The part of the model that checkpoints contain: all of it, or only the adapter."""
        return TrainedPart(self.model) if has_adapter(self.model) else self.model

    def update(
        self, objective: Objective[M], batches: Sequence[Sequence[M]], first_step: int
    ) -> Mapping[str, float]:
        """Run one optimizer step per batch.

        Args:
            objective: the loss of a micro-batch.
            batches: the micro-batches of each optimizer step, the same on every rank; at least one
                step.
            first_step: number of optimizer steps done before.

        Returns:
            The metrics, averaged over the steps.
        """
        reports = []
        shares = [own_share(batch, self.engine, self._dist_info) for batch in batches]
        for report in train_steps(
            self.engine, objective, shares, first_step=first_step, dist_info=self._dist_info
        ):
            reports.append(report)
            if self.average is not None:
                with self.engine.gathered_weights() as model:
                    self.average.update(model)
        names = ("loss", "grad_norm", "learning_rate")
        flat = [{**{n: getattr(r, n) for n in names}, **r.metrics} for r in reports]
        return {name: sum(r[name] for r in flat) / len(flat) for name in flat[0]}


def cut(
    experience: Experience, rows: Sequence[int], budget_tokens: int, world_size: int = 1
) -> list[Experience]:
    """Split some rows of a round into micro-batches of at most `budget_tokens` padded tokens."""
    lengths = experience.batch.attention_mask.sum(dim=1)[list(rows)].tolist()
    pieces = cut_by_tokens(lengths, budget_tokens, world_size=world_size)
    return [experience.rows(torch.tensor([rows[i] for i in piece])) for piece in pieces]


def policy_logprobs(
    model: Computing, temperature: float, budget_tokens: int, dist_info: DistInfo = SINGLE_PROCESS
) -> FrozenModel:
    """Build a model that returns log-probabilities at the sampling temperature."""

    def forward(model: nn.Module, batch: Batch) -> Tensor:
        return logprobs(model, batch, temperature=temperature)

    return FrozenModel(model, forward, budget_tokens, dist_info)


def at_work(
    weights: FrozenWeights, function: Callable[[Batch], Tensor]
) -> Callable[[Batch], Tensor]:
    """Let `function` find the weights on their device whenever it is called."""

    def call(batch: Batch) -> Tensor:
        with weights.at_work():
            return function(batch)

    return call


def critic_values(
    model: Computing, budget_tokens: int, dist_info: DistInfo = SINGLE_PROCESS
) -> FrozenModel:
    """Build a model that returns values."""
    return FrozenModel(model, token_values, budget_tokens, dist_info)


def critic_end_values(
    model: Computing, budget_tokens: int, dist_info: DistInfo = SINGLE_PROCESS
) -> FrozenModel:
    """Build a model that returns the value after the last token of each row, in its column."""

    def forward(model: nn.Module, batch: Batch) -> Tensor:
        values = torch.zeros(batch.input_ids.shape, device=batch.input_ids.device)
        values[batch.ends()] = sequence_scores(model, batch).float()
        return values

    return FrozenModel(model, forward, budget_tokens, dist_info)
