"""DeepSpeed: ZeRO 0 to 3, offload, and checkpoints for any number of workers.

DeepSpeed trains a twin of the model, which holds the weights. The plain model is empty until
`gathered_weights` fills it. Only `compute` uses the twin, under ZeRO 3. So other code never uses
DeepSpeed's hooks. No other module than this one, `deepspeed_setup` and `deepspeed_weights` imports
DeepSpeed.

The gradient of a batch is divided once: `managed_gradient_accumulation=False` makes each `step` the
end of a batch, after any number of backward passes. DeepSpeed takes the mean over ranks of the
summed losses' gradients. It is divided by `count / world_size`, passed as a loss scale; the
result is the sum over all ranks divided by the global count, before clipping.
"""

from __future__ import annotations

import logging
import shutil
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.checkpoint import ds_to_universal
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address
from torch import Tensor, nn

from training_core.dist_info import SINGLE_PROCESS, DistInfo
from training_core.distributed import (
    Asked,
    barrier,
    broadcast_tensors,
    broadcast_weights,
)
from training_core.engine.deepspeed_setup import adamw, connect, device
from training_core.engine.deepspeed_weights import TwinWeights
from training_core.engine.master_weights import MasterWeights
from training_core.engine.optimizers import BETAS, decay_groups
from training_core.engine.protocol import A, DividedModel, M, Objective, StateDict, T
from training_core.engine.torch_engine import require_kind, sum_and_clip
from training_core.engine.twin import of_one_dtype, take_weights
from training_core.engine.unpickling import tensors_only
from training_core.engine.zero import (
    PARTITIONED,
    Zero,
    deepspeed_config,
    groups_and_steps_kept,
    require_even_heads,
    require_even_parts,
    require_one_dtype,
    require_same_parts,
)
from training_core.errors import ConfigError
from training_core.types import Loss

log = logging.getLogger(__name__)
logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
# DeepSpeed uses names that torch 2.13 has changed, and torch warns at every call.
warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")

TAG = "state"
IN_SHARDS = (fragment_address, LossScaler, ZeroStageEnum)
"""DeepSpeed's own classes in its shards; they only hold numbers."""


class DeepSpeedEngine:
    """AdamW with ZeRO.

    Args:
        model: model to train, except parameters that need no gradient. Its weights move into the
            engine until `finish`. ZeRO 3 moves them to the GPU one after the other.
        zero: which state is divided among the ranks, and which is offloaded.
        learning_rate: peak of the learning rate.
        schedule: step (from 0) -> factor on `learning_rate`.
        weight_decay: decoupled, on matrices only.
        max_grad_norm: the gradient is scaled down to this norm.
        betas: decay of AdamW's two moments.
        eps: added to AdamW's denominator.
        dist_info: this process; all ranks start with the weights of the first.
        used_outside: returns the weights that functions of the model use outside of the modules
            that own them, e.g. `head_weights`. ZeRO 3 must know them before the first computation.

    Raises:
        ConfigError: if the machine or the model does not support the settings in `zero`.
    """

    def __init__(
        self,
        model: nn.Module,
        zero: Zero,
        *,
        learning_rate: float,
        schedule: Callable[[int], float],
        weight_decay: float = 0.0,
        max_grad_norm: float = 1.0,
        betas: tuple[float, float] = BETAS,
        eps: float = 1e-8,
        dist_info: DistInfo = SINGLE_PROCESS,
        used_outside: Callable[[nn.Module], Iterable[nn.Parameter]] = lambda model: (),
    ) -> None:
        dist_info = replace(dist_info, tensor_parallel_size=zero.tensor_parallel_size)
        require_even_heads(model, zero.tensor_parallel_size)
        require_one_dtype(model, zero)
        connect(dist_info)
        self.model = model
        self.needs_even_ranks = zero.zero_stage > 0
        self.computes_together = zero.zero_stage == PARTITIONED
        self._zero, self._dist_info, self._max_grad_norm = zero, dist_info, max_grad_norm
        self._peak, self._schedule, self._done = learning_rate, schedule, 0
        if self.computes_together:
            for buffer in model.buffers():
                buffer.data = buffer.data.to(device())
            broadcast_tensors([*model.buffers()], dist_info)
        else:
            broadcast_weights(model, dist_info)
        self._twin = take_weights(model)
        self._weights = TwinWeights(model, self._twin, zero, device())
        self._trained = [p for p in self._twin.parameters() if p.requires_grad]
        decaying = of_one_dtype(decay_groups(self._trained, weight_decay))
        optimizer = adamw(zero, decaying, lr=learning_rate, betas=betas, eps=eps)
        # Every other stage of DeepSpeed has masters of its own.
        self._masters = MasterWeights(self._trained if zero.zero_stage == 0 else [])
        self._masters.give_to([optimizer])
        asked, config = Asked(self._twin), deepspeed_config(zero, max_grad_norm)
        if self.computes_together:  # moves, broadcasts and divides one weight after the other
            deepspeed.zero.Init(module=asked, config_dict_or_path=config)
        self._engine: Any = deepspeed.initialize(
            model=asked, optimizer=optimizer, config=config, dist_init_required=False
        )[0]
        for weight in used_outside(self._twin) if self.computes_together else ():
            deepspeed.zero.register_external_parameter(asked, weight)
        if zero.tensor_parallel_size > 1:
            require_even_parts(self._twin, self._weights.shapes, zero.tensor_parallel_size)
            # DeepSpeed would pickle the first batch, but an objective cannot be pickled.
            self._engine.first_dataloader_check.remove()
        if zero.zero_stage == 0:
            self._engine.enable_backward_allreduce = False  # `step` adds up the gradients itself
        else:  # off by default unless DeepSpeed's own mixed precision is on
            self._engine.optimizer.check_grad_overflow = True

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        return self._peak * self._schedule(self._done)

    def loss(self, objective: Objective[M], micro_batch: M) -> Loss:
        """Compute `objective` on the twin, inside DeepSpeed's forward pass."""

        def in_parts(model: nn.Module, batch: M) -> tuple[Tensor, Loss]:
            loss = objective(model, batch)
            return loss.total, loss  # DeepSpeed's hooks do not find a total inside of a Loss

        total, loss = self._engine(in_parts, micro_batch)
        return replace(loss, total=total)

    def backward(self, total: Tensor) -> None:
        """Add the gradient of `total`, the loss summed over the micro-batch."""
        self._engine.backward(total, scale_wrt_gas=False)
        self._masters.take_gradients()

    def step(self, count: float) -> float:
        """Add up, divide by `count`, clip, update, clear; see `TrainEngine.step`."""
        for group in self._engine.optimizer.param_groups:
            group["lr"] = self.learning_rate
        norm = self._plain_step(count) if self._zero.zero_stage == 0 else self._zero_step(count)
        if norm < float("inf"):
            self._done += 1
        return norm

    def _zero_step(self, count: float) -> float:
        optimizer = self._engine.optimizer
        optimizer.custom_loss_scaler = True
        optimizer.external_loss_scale = (count or 1.0) / self._dist_info.data_world_size
        self._engine.step()  # it updates nothing if the norm is not finite
        optimizer.custom_loss_scaler = False
        return float("inf") if optimizer.overflow else float(optimizer._global_grad_norm)

    def _plain_step(self, count: float) -> float:
        norm = sum_and_clip(self._masters.updated, count, self._max_grad_norm, self._dist_info)
        if norm < float("inf"):
            self._engine.step()
            self._masters.write_back()
        for parameter in self._masters.updated:
            parameter.grad = None
        return norm

    @torch.no_grad()
    def compute(self, function: Callable[[Any, A], T], argument: A) -> T:
        """Return `function(model, argument)`; ZeRO 3 gathers one layer after the other."""
        if not self.computes_together:
            return function(self.model, argument)
        was_training = self._twin.training
        self._engine.eval()
        try:
            return self._engine(function, argument)
        finally:
            self._engine.train(was_training)

    def at_work(self) -> AbstractContextManager[object]:
        """Fill the plain model, except under ZeRO 3: its layers are gathered by `compute`."""
        return nullcontext() if self.computes_together else self.gathered_weights()

    def gathered_weights(self) -> AbstractContextManager[nn.Module]:
        """Fill the empty plain model with copies of the twin's weights; uses may be nested."""
        return self._weights.gathered()

    def weights_to_send(self) -> nn.Module | DividedModel:
        """Return the plain model; under ZeRO 3 the twin's weights, gathered a few at a time."""
        return self._weights.to_send() if self.computes_together else self.model

    def weights_on_first_rank(self) -> AbstractContextManager[nn.Module]:
        """Fill the plain model of the first rank, under ZeRO 3 in CPU memory."""
        return self._weights.on_first_rank(self._dist_info)

    def finish(self, *, only_first_rank: bool = False) -> None:
        """Return the weights to `model` and release DeepSpeed; see `TrainEngine.finish`."""
        if only_first_rank and self.computes_together:
            self._weights.fill_first(self._dist_info)
        else:
            self._weights.fill()
        self._engine.destroy()

    def state_dict(self) -> StateDict:
        """Return the position in the schedule, and masters; the other state is in the shards."""
        return {
            "kind": "deepspeed",
            "done": self._done,
            "masters": self._masters.state(),
            "zero_stage": self._zero.zero_stage,
            "tensor_parallel_size": self._zero.tensor_parallel_size,
            "world_size": self._dist_info.world_size,
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Restore the position, and note how the shards were divided.

        Raises:
            ConfigError: if another engine, or one with other settings, returned it.
        """
        require_kind(state, "deepspeed")
        require_same_parts(state, self._zero)
        self._done = int(state["done"])
        self._masters.load_state(state["masters"])
        self._saved_world_size = int(state["world_size"])

    def save_shards(self, directory: Path) -> None:
        """Write each rank's part of weights and moments."""
        self._engine.save_checkpoint(str(directory), tag=TAG, save_latest=False)

    def load_shards(self, directory: Path, scratch: Path) -> None:
        """Read each rank's part; for another number of ranks, convert it in `scratch` first.

        Raises:
            IntegrityError: if a file holds more than tensors and plain values.

        Source:
            Universal checkpoints: Lian et al. 2024, https://arxiv.org/abs/2406.18820
        """
        with tensors_only(*IN_SHARDS):
            self._load_shards(directory, scratch)

    def _load_shards(self, directory: Path, scratch: Path) -> None:
        if self._zero.zero_stage == 0 or self._saved_world_size == self._dist_info.world_size:
            self._engine.load_checkpoint(str(directory), tag=TAG)
            return
        if self._zero.tensor_parallel_size > 1:
            raise ConfigError(
                f"the checkpoint was made by {self._saved_world_size} workers; with "
                "tensor_parallel_size > 1 the same number must resume it, found "
                f"{self._dist_info.world_size}; change resources.num_workers"
            )
        if self._dist_info.is_first:
            _convert(directory / TAG, scratch / TAG)
        barrier(self._dist_info)
        self._load_universal(scratch)
        barrier(self._dist_info)
        if self._dist_info.is_first:
            shutil.rmtree(scratch)

    def _load_universal(self, directory: Path) -> None:
        with groups_and_steps_kept(self._engine.optimizer.optimizer):
            self._engine._config.load_universal_checkpoint = True
            self._engine.load_checkpoint(str(directory), tag=TAG)
            self._engine._config.load_universal_checkpoint = False


def _convert(shards: Path, universal: Path) -> None:
    """Make a universal checkpoint."""
    log.info("making a universal checkpoint of %s", shards)
    folders = {"input_folder": str(shards), "output_folder": str(universal)}
    settings = {"num_extract_workers": 1, "num_merge_workers": 1, "keep_temp_folder": False}
    ds_to_universal.main(Namespace(**folders, **settings, strict=True, inject_missing_state=True))
