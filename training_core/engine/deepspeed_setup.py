"""What DeepSpeed needs before its engine: a process group, a device, an optimizer."""

from __future__ import annotations

import os
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

from training_core.dist_info import DistInfo
from training_core.distributed import connect_alone
from training_core.engine.zero import Zero

SHARED_MEMORY_OP = "deepspeed_shm_comm"


def device() -> torch.device:
    """Return the device on which DeepSpeed computes."""
    accelerator: Any = get_accelerator()
    return torch.device(accelerator.current_device_name())


def adamw(zero: Zero, groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:
    """Build AdamW over parameter groups; offloaded, it is DeepSpeed's for CPUs."""
    if zero.offload_optimizer and torch.cuda.is_available():
        from deepspeed.ops.adam import DeepSpeedCPUAdam  # noqa: PLC0415 - compiles when it is used

        return DeepSpeedCPUAdam(groups, adamw_mode=True, **settings)
    return torch.optim.AdamW(groups, **settings)


def connect(dist_info: DistInfo) -> None:
    """Set the variable and the process group that DeepSpeed needs even for one process.

    On a CPU, DeepSpeed would first compile its own all-reduce through shared memory, which needs a
    compiler and takes a minute; gloo can do the all-reduce instead.
    """
    deepspeed.ops.__compatible_ops__[SHARED_MEMORY_OP] = False
    os.environ.setdefault("LOCAL_RANK", str(dist_info.local_rank))
    if dist_info.is_single_process:
        connect_alone()
