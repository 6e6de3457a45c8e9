"""Memory and time of the token loss, forward and backward, for a large vocabulary.

    python benchmarks/loss_memory.py [--repeats 3] [--threads 2] [--sizes 128256x4096x1024,...]

A size is vocabulary x tokens x hidden size. Each way runs in a fresh process, in turn:

    naive    logits of all tokens, then `torch.nn.functional.cross_entropy`
    trl      what TRL's trainers use, `trl.kernels.chunked_logprob` (only where TRL is installed)
    ratchet  `training_core.algorithms.logprobs.token_logprobs`

Memory is the peak of the process's resident memory over what it held with weights and hidden
states; the gradients of both count. The losses must agree. Prints one Markdown table: medians, and
ratios as median [smallest, largest].
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from training_core.algorithms.logprobs import Head, token_logprobs

WAYS = ("naive", "trl", "ratchet")
SIZES = "128256x4096x1024,128256x4096x256,32000x2048x512"
WARM_UP_TOKENS = 64
TRL_CHUNK = 32768
"""Columns of the vocabulary at once: TRL's own choice (`trl.trainer.utils`)."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--only", help="one way, in this process; what the others are started with")
    arguments = parser.parse_args()
    if arguments.only:
        torch.set_num_threads(arguments.threads)
        print(json.dumps(_measured(arguments.only, _size(arguments.sizes))))
        return
    print("| vocabulary | tokens | hidden | way | MiB | of naive | s | of TRL |")
    print("|---|---|---|---|---|---|---|---|")
    for size in arguments.sizes.split(","):
        found = [
            {way: _in_fresh_process(way, size, arguments.threads) for way in _ways()}
            for _ in range(arguments.repeats)
        ]
        _require_equal(found[0])
        for way in _ways():
            print(_line(size, way, found), flush=True)


def _ways() -> list[str]:
    if find_spec("trl") is None:
        print("without TRL; pip install ratchet-rlhf[trl]", file=sys.stderr)
        return [way for way in WAYS if way != "trl"]
    return list(WAYS)


def _line(size: str, way: str, found: list[dict[str, dict[str, float]]]) -> str:
    memory = _spread([f[way]["mib"] / f["naive"]["mib"] for f in found])
    against = "trl" if "trl" in found[0] else "naive"
    seconds = _spread([f[way]["seconds"] / f[against]["seconds"] for f in found])
    middle = {key: median(f[way][key] for f in found) for key in ("mib", "seconds")}
    sizes = " | ".join(f"{n:,}" for n in _size(size))
    numbers = f"{middle['mib']:,.0f} | {memory} | {middle['seconds']:.1f} | {seconds}"
    return f"| {sizes} | {way} | {numbers} |"


def _spread(ratios: list[float]) -> str:
    return f"{median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"


def _require_equal(found: dict[str, dict[str, float]]) -> None:
    for way, numbers in found.items():
        for key in ("loss", "grad_hidden", "grad_weight"):
            if abs(numbers[key] - found["naive"][key]) > 1e-3 * abs(found["naive"][key]):
                raise SystemExit(
                    f"{key} of {way} is {numbers[key]}, of naive {found['naive'][key]}"
                )


def _in_fresh_process(way: str, size: str, threads: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--only", way, "--sizes", size, "--threads", str(threads)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output)


def _size(text: str) -> tuple[int, int, int]:
    vocabulary, tokens, hidden = map(int, text.split("x"))
    return vocabulary, tokens, hidden


def _measured(way: str, size: tuple[int, int, int]) -> dict[str, float]:
    """Memory (MiB), time and checksums of one forward and backward pass."""
    vocabulary, tokens, hidden_size = size
    generator = torch.Generator().manual_seed(0)
    weight = torch.empty(vocabulary, hidden_size).normal_(std=0.02, generator=generator)
    hidden = torch.empty(tokens, hidden_size).normal_(generator=generator)
    targets = torch.randint(vocabulary, (tokens,), generator=generator)
    loss_of: Callable[..., Tensor] = {"naive": _naive, "trl": _trl, "ratchet": _ratchet}[way]
    narrow = weight[:WARM_UP_TOKENS].clone().requires_grad_()
    loss_of(
        hidden[:WARM_UP_TOKENS].clone().requires_grad_(), narrow, targets[:WARM_UP_TOKENS] % 64
    ).backward()
    weight.requires_grad_()
    hidden.requires_grad_()
    before = _resident_mib()
    began = time.perf_counter()
    loss = loss_of(hidden, weight, targets)
    loss.backward()
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "mib": peak - before,
        "seconds": seconds,
        "loss": float(loss),
        "grad_hidden": _grad_norm(hidden),
        "grad_weight": _grad_norm(weight),
    }


def _grad_norm(leaf: Tensor) -> float:
    return math.nan if leaf.grad is None else float(leaf.grad.norm())


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def _naive(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(hidden @ weight.T, targets)


def _ratchet(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return -token_logprobs(hidden, Head(weight), targets)[0].mean()


def _trl(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    chunked: Any = import_module("trl.kernels.chunked_logprob").ChunkedLogProbFunction
    outputs = ("entropy",)  # Ratchet's gives it too
    found = chunked.apply(hidden, weight, None, targets, 1.0, TRL_CHUNK, None, 1.0, outputs)
    return -found[0].mean()


if __name__ == "__main__":
    main()
