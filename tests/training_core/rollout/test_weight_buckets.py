"""Weights on their way through one small bucket."""

import pytest
import torch

from training_core.rollout.weight_buckets import BucketReader, fill_buckets
from training_core.rollout.weight_channels import SharedMemorySender


def sent_through(size, weights):
    """Send `weights` through a bucket as two processes would, and count the buckets."""
    sender = SharedMemorySender(size)
    (channel,) = sender.invite([1])
    reader = BucketReader(channel, torch.device("cpu"))
    found, buckets = [], 0
    for bucket in fill_buckets(weights, sender.memory):
        found += reader.read(bucket.pieces)
        sender.memory.fill_(0)  # it may be filled again
        buckets += 1
    sender.close()
    return found, buckets


@pytest.mark.parametrize(("size", "buckets"), [(8, 18), (64, 3), (1000, 1)])
def test_tensors_of_every_size_and_dtype_arrive_through_buckets_of_any_size(size, buckets):
    weights = [
        ("matrix", torch.randn(5, 6).T),  # 120 bytes
        ("scalar", torch.tensor(3.5)),  # 4
        ("empty", torch.empty(0, 7)),
        ("half", torch.randn(7).bfloat16()),  # 14
        ("last", torch.randn(1)),  # 4; 142 bytes together
    ]
    found, used = sent_through(size, weights)
    assert [name for name, _ in found] == [name for name, _ in weights]
    for (_, theirs), (_, ours) in zip(found, weights, strict=True):
        assert theirs.dtype == ours.dtype
        assert torch.equal(theirs, ours)
    assert used == buckets


def test_nothing_is_nothing():
    assert sent_through(8, []) == ([], 0)
