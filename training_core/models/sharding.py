"""Frozen models whose weights the ranks have divided; FSDP gathers those of one layer at a time.

FSDP and not ZeRO 3: it needs no DeepSpeed, so the models beside a policy are held alike under every
engine, and its parameters may have several dtypes.

Source:
    ZeRO 3: Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054; FSDP's `fully_shard`:
    https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from training_core.dist_info import DistInfo
from training_core.distributed import Asked, connect_alone
from training_core.models.language_model import LanguageModel


def shard(
    model: LanguageModel, device: torch.device, dist_info: DistInfo, *, offload: bool
) -> Asked:
    """Divide the weights of a frozen model among the ranks, in place.

    Each layer is gathered while it computes. What is in no layer, i.e. embedding, last norm and
    head, is gathered while the returned module runs.

    Args:
        model: on the CPU, or already on the device; only one layer at a time is moved there whole.
        device: where it computes.
        dist_info: this process. With one process the layers are only moved one at a time.
        offload: whether the parts are in CPU memory between two uses.

    Returns:
        A module that calls functions of the model. Every rank must call it equally often.
    """
    if dist_info.is_single_process:
        connect_alone()
    mesh = init_device_mesh(device.type, (dist_info.world_size,))
    pinned = CPUOffloadPolicy(pin_memory=device.type == "cuda")
    policy = pinned if offload else OffloadPolicy()
    layers = set(model._no_split_modules or ())
    asked = Asked(model)
    for module in model.modules():
        if type(module).__name__ in layers:
            fully_shard(module, mesh=mesh, reshard_after_forward=True, offload_policy=policy)
    fully_shard(asked, mesh=mesh, reshard_after_forward=True, offload_policy=policy)
    return asked


def is_divided(weight: Tensor) -> bool:
    """Tell whether `shard` has divided a weight."""
    return isinstance(weight, DTensor)


def computing_device(weight: Tensor) -> torch.device:
    """Return the device to which the layer of a weight comes to compute."""
    if isinstance(weight, DTensor):
        return torch.device(weight.device_mesh.device_type)
    return weight.device


def whole(weight: Tensor) -> Tensor:
    """Return a weight with the parts of all ranks, which must all call this; or the weight itself.

    The part of a single process is all of it, wherever it is.
    """
    if not isinstance(weight, DTensor):
        return weight
    return weight.to_local() if weight.device_mesh.size() == 1 else weight.full_tensor()
