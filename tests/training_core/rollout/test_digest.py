"""Digests of weights: what they see, and what they deliberately do not."""

import pytest
import torch

from training_core.rollout import digest
from training_core.rollout.digest import content_digest, fingerprint

SMALL_PIECES = 16  # bytes


def numbers(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_fingerprint_sees_names_shapes_dtypes_and_bytes_and_not_the_order():
    a, b = ("a", torch.tensor([1.0, 2.0])), ("b", torch.tensor([3.0]))
    known = fingerprint([a, b])
    assert fingerprint([b, a]) == known
    assert fingerprint([("c", a[1]), b]) != known
    assert fingerprint([("a", a[1].reshape(1, 2)), b]) != known
    assert fingerprint([("a", a[1].view(torch.int32)), b]) != known
    assert fingerprint([("a", torch.tensor([1.0, 2.0000002])), b]) != known
    assert fingerprint([("a", torch.tensor([2.0, 1.0])), b]) != known
    assert fingerprint([("a", b[1]), ("b", a[1])]) != known
    assert fingerprint([a, b, ("empty", torch.empty(0))]) != known
    assert fingerprint([]) not in (known, fingerprint([a]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("size", [1, 7, 8, 9, 40])
def test_the_fingerprint_sees_each_single_byte_and_its_place(monkeypatch, dtype, size):
    """Also in the last block, and if the bytes are no multiple of a word."""
    monkeypatch.setattr(digest, "ROWS", 2)
    monkeypatch.setattr(digest, "COLUMNS", 3)
    tensor = (numbers(size) * 100).to(dtype)
    data = tensor.view(torch.uint8)
    seen = {fingerprint([("a", tensor)])}
    for place in range(len(data)):
        for bit in (1, 128):
            data[place] ^= bit
            seen.add(fingerprint([("a", tensor)]))
            data[place] ^= bit
    assert len(seen) == 1 + 2 * len(data)
    turned = {fingerprint([("a", tensor.roll(by))]) for by in range(size)}
    assert len(turned) == len({tuple(tensor.roll(by).tolist()) for by in range(size)})


def test_the_fingerprint_sees_a_transposed_matrix_and_a_shifted_view():
    square = numbers(64, 64)
    assert fingerprint([("a", square)]) != fingerprint([("a", square.T)])
    line = numbers(1025)
    assert fingerprint([("a", line[1:])]) == fingerprint([("a", line[1:].clone())])
    assert fingerprint([("a", line[1:])]) != fingerprint([("a", line[:-1])])


def test_the_content_digest_sees_numbers_and_not_how_an_engine_lays_them_out(monkeypatch):
    query, value = numbers(4, 6), numbers(4, 6, seed=2)
    known = content_digest([query, value], torch.float32)
    fused_and_padded = torch.cat([value.T, torch.zeros(3, 4), query.T])
    assert content_digest([fused_and_padded], torch.float32) == known
    for changed in (value.nextafter(torch.tensor(9.0)), value * 2, -value, value[:3]):
        assert content_digest([query, changed], torch.float32) != known
    halves = [query.bfloat16(), value.bfloat16()]  # what an engine in bfloat16 has
    assert content_digest(halves, torch.bfloat16) == content_digest([query, value], torch.bfloat16)
    assert content_digest([-torch.zeros(2)], torch.float32) == content_digest([], torch.float32)
    monkeypatch.setattr(digest, "CPU_PIECE_BYTES", SMALL_PIECES)
    assert content_digest([query, value], torch.float32) == known


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_content_digest_sees_every_flipped_bit(dtype):
    width = 8 * dtype.itemsize
    integers = {16: torch.int16, 32: torch.int32}[width]
    seen = {content_digest([torch.tensor([2.0], dtype=dtype)], dtype)}
    for bit in range(width):
        tensor = torch.tensor([2.0], dtype=dtype)
        tensor.view(integers).bitwise_xor_(torch.tensor(1).bitwise_left_shift(bit).to(integers))
        seen.add(content_digest([tensor], dtype))
    assert len(seen) == width + 1


def test_a_transposed_weight_is_read_without_a_copy():
    tensor = numbers(6, 4).T
    assert digest._in_memory_order(tensor).data_ptr() == tensor.data_ptr()
    assert content_digest([tensor], torch.float32) == content_digest(
        [tensor.contiguous()], torch.float32
    )
