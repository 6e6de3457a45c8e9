"""Digests of weights, computed on the device that holds them.

They protect against accidents, not attacks: it is easy to construct other weights with the same
digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

CPU_PIECE_BYTES = 2**20
"""Small enough that a piece and its temporary arrays stay in the processor's cache."""

GPU_PIECE_BYTES = 2**26
"""Large enough that starting the kernels costs little."""

MULTIPLIERS = (-0x7A143589, -0x3D4D51C3)
"""Odd constants of xxHash and MurmurHash 3 (Collet; Appleby), as signed integers of 32 bits."""

ROWS, COLUMNS = 256, 512
"""Of a block of 1 MiB, whose sums take 6 KiB."""

Sums: TypeAlias = tuple[int, int]

WORD_BYTES = 8
LOW = 2**32 - 1


@torch.no_grad()
def content_digest(weights: Iterable[Tensor], dtype: torch.dtype) -> str:
    """Return a digest of all numbers in `weights`, each rounded to `dtype`.

    Only the numbers count, not their names, order or shapes, because an engine may fuse, transpose
    or pad layers (with zeros, which do not count). It is the sums over all numbers of f(x) and
    g(f(x)) modulo 2^32, where f and g mix the bits of x, without loss, and keep zero. Processors
    multiply integers of 32 bits several times as fast as those of 64.

    A change of one number always changes the digest. Other changes, e.g. of a whole layer, go
    unseen with a probability of about 2^-64, unless they only exchange numbers.
    """
    return digest_of_sums(content_sums(weights, dtype))


def digest_of_sums(sums: Sums) -> str:
    """Return the `content_digest` of weights with these sums."""
    low, high = sums
    return f"{(high & LOW) << 32 | (low & LOW):016x}"


def digest_of_parts(parts: Sequence[Sequence[Sums]]) -> str:
    """Return the `content_digest` of weights that are divided among processes.

    A weight whose sums are equal in all of them is not divided, e.g. that of a norm, and counts
    once.

    Args:
        parts: for each process the sums of its weights, in the same order.
    """
    total = [0, 0]
    for sums in zip(*parts, strict=True):
        for place in range(2):
            total[place] += sums[0][place] if len(set(sums)) == 1 else sum(s[place] for s in sums)
    return digest_of_sums((total[0], total[1]))


@torch.no_grad()
def content_sums(weights: Iterable[Tensor], dtype: torch.dtype) -> Sums:
    """Return the two sums of `content_digest`; those of several sets of weights can be added."""
    total: Tensor | None = None
    scratch: dict[tuple[torch.device, torch.dtype], Tensor] = {}
    for tensor in weights:
        for piece in _in_memory_order(tensor).split(_piece_words(tensor.device)):
            rounded = _room(scratch, tensor.device, dtype, len(piece)).copy_(piece)
            rounded += 0.0  # there is one zero
            is_narrow = dtype.itemsize < torch.int32.itemsize
            words = rounded.view(torch.int16).int() if is_narrow else rounded.view(torch.int32)
            shifted = _room(scratch, tensor.device, torch.int32, len(words))
            sums = []
            for multiplier in MULTIPLIERS:
                words ^= torch.bitwise_right_shift(words, 16, out=shifted)
                words *= multiplier
                sums.append(words.sum(dtype=torch.int32))
            both = torch.stack(sums).long()
            total = both if total is None else total.to(both.device) + both
    low, high = (0, 0) if total is None else total.tolist()  # waits for the device, once
    return low, high


@torch.no_grad()
def fingerprint(weights: Iterable[tuple[str, Tensor]]) -> str:
    """Return a digest of names, shapes, dtypes and bytes, in the order of the names.

    The words of 8 bytes of a tensor are cut into blocks of `ROWS` rows and `COLUMNS` columns. The
    digest is the SHA-256 of the sums modulo 2^64 of every row and every column, which takes no
    temporary arrays and no multiplications.

    A change of up to three words always changes the digest. A larger one goes unseen only if the
    changes cancel each other in every row and in every column that they touch.
    """
    digest = hashlib.sha256()
    found = {name: (f"{name} {tuple(t.shape)} {t.dtype};", _sums(t)) for name, t in weights}
    sums: list[Tensor] = []
    for name in sorted(found):
        heading, own = found[name]
        digest.update(heading.encode())
        sums += own
    if sums:
        device = sums[0].device
        numbers = torch.cat([part.to(device) for part in sums]).cpu()  # waits for it, once
        digest.update(numbers.numpy().tobytes())
    return digest.hexdigest()


def _sums(tensor: Tensor) -> list[Tensor]:
    """Return the sums of the rows and columns of each block."""
    return [block.sum(dim=axis) for block in _blocks(tensor) for axis in (1, 0)]


def _blocks(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the bytes of `tensor` as int64 [rows, columns], the last row with zeros."""
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if data.storage_offset() % WORD_BYTES:
        data = data.clone()
    row_bytes = COLUMNS * WORD_BYTES
    whole = len(data) - len(data) % row_bytes
    if whole:
        yield from data[:whole].view(torch.int64).view(-1, COLUMNS).split(ROWS)
    if whole < len(data):
        row = torch.zeros(row_bytes, dtype=torch.uint8, device=data.device)
        row[: len(data) - whole] = data[whole:]
        yield row.view(torch.int64)[None]


def _room(
    scratch: dict[tuple[torch.device, torch.dtype], Tensor],
    device: torch.device,
    dtype: torch.dtype,
    size: int,
) -> Tensor:
    """Return a temporary array [size] that stays in the cache, and is used again next time."""
    if (device, dtype) not in scratch:
        # two words for each number of 8 bytes
        scratch[device, dtype] = torch.empty(2 * _piece_words(device), dtype=dtype, device=device)
    return scratch[device, dtype][:size]


def _piece_words(device: torch.device) -> int:
    size = CPU_PIECE_BYTES if device.type == "cpu" else GPU_PIECE_BYTES
    return size // torch.int32.itemsize


def _in_memory_order(tensor: Tensor) -> Tensor:
    """Return all numbers [N] in an order that needs no copy, e.g. if `tensor` is transposed."""
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda axis: -strides[axis])
    return tensor.detach().permute(order).reshape(-1)
