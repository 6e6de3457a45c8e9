"""Communication between processes that train one model.

Each process is a rank. With one rank every function here returns its input and does not use
torch.distributed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore

from training_core.dist_info import DistInfo
from training_core.types import Mean

A = TypeVar("A")
T = TypeVar("T")

BUCKET_ELEMENTS = 2**25
"""Elements that are added up at once: 128 MiB in fp32."""
TIMEOUT = timedelta(minutes=30)
"""How long a rank waits for the others; one of them may be saving or evaluating."""


@contextmanager
def connected(dist_info: DistInfo, init_method: str) -> Iterator[None]:
    """Connect the ranks while the body runs: nccl if there are GPUs, else gloo.

    Args:
        dist_info: this process.
        init_method: address of rank 0, e.g. `tcp://host:port`, or `env://`.
    """
    if dist_info.is_single_process:
        yield
        return
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(dist_info.local_rank)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=init_method,
        rank=dist_info.rank,
        world_size=dist_info.world_size,
        timeout=TIMEOUT,
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def connect_alone() -> None:
    """Make the process group that DeepSpeed and FSDP need even for one process."""
    if not dist.is_initialized():
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)


class Asked(nn.Module):
    """A model whose forward pass calls a function of the model.

    Hooks gather a divided weight while the module that uses it runs. The chunked loss uses the
    head's weight outside the head, but inside this module. So the hooks treat this module as a user
    of the weight, also in the backward pass.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[Any, A], T], argument: A) -> T:
        """Return `function(model, argument)`."""
        return function(self.model, argument)


def barrier(dist_info: DistInfo) -> None:
    """Wait until every rank has called this function."""
    if not dist_info.is_single_process:
        dist.barrier()


def all_gather_object(value: T, dist_info: DistInfo) -> list[T]:
    """Collect a small picklable value of every rank, in the order of ranks, on every rank."""
    if dist_info.is_single_process:
        return [value]
    values = [value] * dist_info.world_size  # each is replaced
    dist.all_gather_object(values, value)
    return values


def broadcast_object(value: T, dist_info: DistInfo) -> T:
    """Return the picklable value of the first rank on every rank; the others' are ignored."""
    if dist_info.is_single_process:
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def any_rank(claim: bool, dist_info: DistInfo) -> bool:
    """Whether the claim is true on at least one rank; the result is the same on every rank."""
    return any(all_gather_object(claim, dist_info))


def pool_means(means: Mapping[str, Mean], dist_info: DistInfo) -> dict[str, Mean]:
    """Add up means over shares of the data, in the order of ranks; a rank may lack some of them."""
    pooled: dict[str, Mean] = {}
    everyone = all_gather_object({n: (m.total, m.count) for n, m in means.items()}, dist_info)
    for of_rank in everyone[:: dist_info.tensor_parallel_size]:
        for name, (total, count) in of_rank.items():
            mean = Mean(total, count)
            pooled[name] = pooled[name] + mean if name in pooled else mean
    return pooled


def broadcast_weights(model: nn.Module, dist_info: DistInfo) -> None:
    """Copy parameters and buffers of the first rank to all, so that all start with one model."""
    broadcast_tensors([*model.parameters(), *model.buffers()], dist_info)


def broadcast_tensors(tensors: Sequence[Tensor], dist_info: DistInfo) -> None:
    """Copy tensors of the first rank to all, in place."""
    for tensor in () if dist_info.is_single_process else tensors:
        dist.broadcast(tensor.detach(), src=0)


def all_reduce_gradients(parameters: Sequence[Tensor], dist_info: DistInfo) -> None:
    """Add up the gradients of all ranks, in place.

    The gradients are copied into flat buffers, which are summed once per optimizer step. The hooks
    of DistributedDataParallel expect a backward pass of every rank for every micro-batch and take a
    mean, but here a rank may have any number of micro-batches, or none. A parameter that has no
    gradient on any rank still has none afterwards.

    Args:
        parameters: trained parameters, in the same order on every rank.
        dist_info: this process.
    """
    if dist_info.is_single_process:
        return
    has_gradient = torch.tensor(
        [p.grad is not None for p in parameters], dtype=torch.int32, device=parameters[0].device
    )
    dist.all_reduce(has_gradient)
    chosen = [p for p, n in zip(parameters, has_gradient.tolist(), strict=True) if n]
    for parameter in chosen:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    for bucket in _buckets([p.grad for p in chosen if p.grad is not None]):
        flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
        dist.all_reduce(flat)
        pieces = flat.split([gradient.numel() for gradient in bucket])
        for gradient, piece in zip(bucket, pieces, strict=True):
            gradient.copy_(piece.view_as(gradient))


def sum_over_ranks(tensor: Tensor, dist_info: DistInfo) -> Tensor:
    """Add up a tensor of the same shape of every rank, in place; return it."""
    if not dist_info.is_single_process:
        dist.all_reduce(tensor)
    return tensor


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield neighbours of one dtype and device, of about `BUCKET_ELEMENTS` together."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        is_like = not bucket or (bucket[0].dtype, bucket[0].device) == (tensor.dtype, tensor.device)
        if not is_like or sum(t.numel() for t in bucket) + tensor.numel() > BUCKET_ELEMENTS:
            if bucket:
                yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket
