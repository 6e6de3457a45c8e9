"""DeepSpeed: ZeRO 0 to 3, offload, and checkpoints for any number of workers.

Only this module imports DeepSpeed. DeepSpeed trains a twin of the model, which holds the weights.
The plain model is empty until `gathered_weights` fills it. So code outside never uses a divided
parameter or DeepSpeed's hooks.

The gradient of a batch is divided once: `managed_gradient_accumulation=False` makes each `step` the
end of a batch, after any number of backward passes. DeepSpeed takes the mean over ranks of the
summed losses' gradients. It is divided by `count / world_size`, passed as a loss scale; the
result is the sum over all ranks divided by the global count, before clipping.
"""

from __future__ import annotations

import logging
import os
import shutil
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.checkpoint import ds_to_universal
from deepspeed.utils import groups
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore

from training_core.dist_info import SINGLE_PROCESS, DistInfo
from training_core.distributed import barrier, broadcast_weights
from training_core.engine.optimizers import BETAS, decay_groups
from training_core.engine.protocol import M, Objective, StateDict
from training_core.engine.torch_engine import require_kind, sum_and_clip
from training_core.engine.twin import Asked, of_one_dtype, take_weights
from training_core.engine.zero import (
    PARTITIONED,
    Zero,
    cut_dimension,
    deepspeed_config,
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
SHARED_MEMORY_OP = "deepspeed_shm_comm"


class DeepSpeedEngine:
    """AdamW under ZeRO.

    Args:
        model: model to train, except parameters that need no gradient. Its weights move into the
            engine until `finish`.
        zero: settings of the division.
        learning_rate: peak of the learning rate.
        schedule: step (from 0) -> factor on `learning_rate`.
        weight_decay: decoupled, on matrices only.
        max_grad_norm: the gradient is scaled down to this norm.
        betas: decay of AdamW's two moments.
        eps: added to AdamW's denominator.
        dist_info: this process; all ranks start with the weights of the first.

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
    ) -> None:
        dist_info = replace(dist_info, tensor_parallel_size=zero.tensor_parallel_size)
        require_even_heads(model, zero.tensor_parallel_size)
        require_one_dtype(model, zero)
        _connect(dist_info)
        broadcast_weights(model, dist_info)
        self.model = model
        self.needs_even_ranks = zero.zero_stage > 0
        self._zero, self._dist_info, self._max_grad_norm = zero, dist_info, max_grad_norm
        self._peak, self._schedule, self._done = learning_rate, schedule, 0
        self._twin = take_weights(model)
        self._shell = list(model.parameters())
        self._shapes = [twin.shape for twin in self._twin.parameters()]
        self._trained = [p for p in self._twin.parameters() if p.requires_grad]
        decaying = of_one_dtype(decay_groups(self._trained, weight_decay))
        self._engine: Any = deepspeed.initialize(
            model=Asked(self._twin),
            optimizer=_adamw(zero, decaying, lr=learning_rate, betas=betas, eps=eps),
            config=deepspeed_config(zero, max_grad_norm),
            dist_init_required=False,
        )[0]
        if zero.tensor_parallel_size > 1:
            require_even_parts(self._twin, self._shapes, zero.tensor_parallel_size)
            # DeepSpeed would pickle the first batch, but an objective cannot be pickled.
            self._engine.first_dataloader_check.remove()
        if zero.zero_stage == 0:
            self._engine.enable_backward_allreduce = False  # `step` adds up the gradients itself

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        return self._peak * self._schedule(self._done)

    def loss(self, objective: Objective[M], micro_batch: M) -> Loss:
        """Compute `objective` on the twin, inside DeepSpeed's forward pass."""
        total, loss = self._engine(objective, micro_batch)
        return replace(loss, total=total)

    def backward(self, total: Tensor) -> None:
        """Add the gradient of the undivided loss `total`."""
        self._engine.backward(total, scale_wrt_gas=False)

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
        norm = sum_and_clip(self._trained, count, self._max_grad_norm, self._dist_info)
        if norm < float("inf"):
            self._engine.step()
        for parameter in self._trained:
            parameter.grad = None
        return norm

    @contextmanager
    def gathered_weights(self) -> Iterator[nn.Module]:
        """Fill the empty plain model with copies of the twin's weights."""
        with torch.no_grad():
            for shell, twin in self._pairs():
                shell.data = twin
        try:
            yield self.model
        finally:
            for shell in self._shell:
                shell.data = shell.data.new_empty(0)

    def _pairs(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Yield each parameter of the plain model with its whole weight from the twin."""
        parameters = zip(self._shell, self._twin.parameters(), self._shapes, strict=True)
        for shell, twin, shape in parameters:
            yield shell, self._whole(twin, shape)

    def _whole(self, parameter: Tensor, shape: torch.Size) -> Tensor:
        if self._zero.zero_stage == PARTITIONED:
            with deepspeed.zero.GatheredParameters([parameter]):
                return parameter.data.clone()
        if (dimension := cut_dimension(parameter, shape)) is None:
            return parameter.data.clone()  # a clone: views of a flat buffer cannot be saved
        parts = [torch.empty_like(parameter) for _ in range(self._zero.tensor_parallel_size)]
        mine = parameter.data.contiguous()
        dist.all_gather(parts, mine, group=groups.get_tensor_model_parallel_group())
        return torch.cat(parts, dim=dimension)

    def finish(self) -> None:
        """Return the weights to `model` and release DeepSpeed."""
        with torch.no_grad():
            for shell, twin in self._pairs():
                shell.data = twin
        self._engine.destroy()

    def state_dict(self) -> StateDict:
        """Return the position in the schedule; the other state is in the shards."""
        return {
            "kind": "deepspeed",
            "done": self._done,
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
        self._saved_world_size = int(state["world_size"])

    def save_shards(self, directory: Path) -> None:
        """Write each rank's part of weights and moments."""
        self._engine.save_checkpoint(str(directory), tag=TAG, save_latest=False)

    def load_shards(self, directory: Path, scratch: Path) -> None:
        """Read each rank's part; for another number of ranks, convert the checkpoint first.

        Args:
            directory: folder that `save_shards` wrote; it is not changed.
            scratch: folder for the converted checkpoint, which all ranks share.

        Source:
            Universal checkpoints: Lian et al. 2024, https://arxiv.org/abs/2406.18820
        """
        if self._zero.zero_stage == 0 or self._saved_world_size == self._dist_info.world_size:
            self._engine.load_checkpoint(str(directory), tag=TAG)
            return
        if self._zero.tensor_parallel_size > 1:
            raise ConfigError(
                f"the checkpoint was made by {self._saved_world_size} workers; with "
                "tensor_parallel_size > 1 as many must go on with it, found "
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
        """Load, and correct two errors of DeepSpeed 0.19 under ZeRO 3.

        It gives every parameter group the settings of the first, so that norms would decay. It also
        gives all of them the same tensor as step count, which each group then increments.
        """
        optimizer = self._engine.optimizer.optimizer
        settings = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
        self._engine._config.load_universal_checkpoint = True
        self._engine.load_checkpoint(str(directory), tag=TAG)
        self._engine._config.load_universal_checkpoint = False
        for group, own in zip(optimizer.param_groups, settings, strict=True):
            group.update(own)
        for state in optimizer.state.values():
            if isinstance(state.get("step"), Tensor):
                state["step"] = state["step"].clone()


def _adamw(zero: Zero, groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:
    if zero.offload_optimizer and torch.cuda.is_available():
        from deepspeed.ops.adam import DeepSpeedCPUAdam  # noqa: PLC0415 - compiles when it is used

        return DeepSpeedCPUAdam(groups, adamw_mode=True, **settings)
    return torch.optim.AdamW(groups, **settings)


def _connect(dist_info: DistInfo) -> None:
    """Set the variable and the process group that DeepSpeed needs even for one process.

    On a CPU it would first compile its own operation for sums through shared memory, which needs a
    compiler and takes a minute; gloo can do the sums instead.
    """
    deepspeed.ops.__compatible_ops__[SHARED_MEMORY_OP] = False
    os.environ.setdefault("LOCAL_RANK", str(dist_info.local_rank))
    if dist_info.is_single_process and not dist.is_initialized():
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)


def _convert(shards: Path, universal: Path) -> None:
    """Make a universal checkpoint."""
    log.info("making a universal checkpoint of %s", shards)
    ds_to_universal.main(
        Namespace(
            input_folder=str(shards),
            output_folder=str(universal),
            num_extract_workers=1,
            num_merge_workers=1,
            keep_temp_folder=False,
            strict=True,
            inject_missing_state=True,
        )
    )
