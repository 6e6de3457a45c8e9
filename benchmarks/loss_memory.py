"""Memory and time of the token loss, forward and backward, for a large vocabulary.

    python -m benchmarks loss_memory [--repeats 3] [--threads 2] [--sizes 128256x4096x1024,...]
                                     [--updates 32000x1024x256,...]

A size is vocabulary x tokens x hidden size. The implementations run one after the other, each in a
new process:

    naive    logits of all tokens, then `torch.nn.functional.cross_entropy`
    trl      TRL's `trl.kernels.chunked_logprob` (only if TRL is installed)
    ratchet  `training_core.algorithms.logprobs.token_logprobs`

Memory is the peak of the process's resident memory minus the resident memory before the forward
pass, so weights and hidden states do not count, but their gradients do. The losses must agree.
Prints a Markdown table: medians, and ratios as median [smallest, largest].

The second table has the same for the policy's loss in reinforcement learning on two responses, with
a body of two layers; an update is vocabulary x tokens per response x hidden size. `naive` computes
the logits of all tokens, and from them log-probabilities and entropy; `ratchet` is the stage's
`policy_objective`.
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.update_memory import prepared_update
from training_core.algorithms.logprobs import Head, token_logprobs

WAYS = ("naive", "trl", "ratchet")
UPDATES = ("update naive", "update ratchet")
WARM_UP_TOKENS = 64
TRL_CHUNK = 32768
"""Number of vocabulary columns per chunk; the value that TRL uses (`trl.trainer.utils`)."""


def run(arguments: Namespace) -> None:
    """Measure and print."""
    if arguments.only:
        torch.set_num_threads(arguments.threads)
        print(json.dumps(_measured(arguments.only, _size(arguments.sizes))))
        return
    if arguments.sizes:
        _losses(arguments)
    if arguments.updates:
        _updates(arguments)


def _losses(arguments: Namespace) -> None:
    print("| vocabulary | tokens | hidden | implementation | MiB | of naive | s | of TRL |")
    print("|---|---|---|---|---|---|---|---|")
    for size in arguments.sizes.split(","):
        found = [
            {way: _in_fresh_process(way, size, arguments.threads) for way in _ways()}
            for _ in range(arguments.repeats)
        ]
        _require_equal(found[0])
        for way in _ways():
            print(_line(size, way, found), flush=True)


def _updates(arguments: Namespace) -> None:
    print("\n| vocabulary | tokens per response | hidden | implementation | MiB | of naive | s |")
    print("|---|---|---|---|---|---|---|")
    for size in arguments.updates.split(","):
        found = [
            {way.split()[1]: _in_fresh_process(way, size, arguments.threads) for way in UPDATES}
            for _ in range(arguments.repeats)
        ]
        _require_equal(found[0])
        for way in found[0]:
            memory = _spread([f[way]["mib"] / f["naive"]["mib"] for f in found])
            middle = {key: median(f[way][key] for f in found) for key in ("mib", "seconds")}
            sizes = " | ".join(f"{n:,}" for n in _size(size))
            numbers = f"{middle['mib']:,.0f} | {memory} | {middle['seconds']:.1f}"
            print(f"| {sizes} | {way} | {numbers} |", flush=True)


def _ways() -> list[str]:
    if find_spec("trl") is None:
        print("TRL is not installed; pip install ratchet-rlhf[trl]", file=sys.stderr)
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
        for key in numbers.keys() - {"mib", "seconds"}:
            if abs(numbers[key] - found["naive"][key]) > 1e-3 * abs(found["naive"][key]):
                raise SystemExit(
                    f"expected the same {key}, found {numbers[key]} in {way} and "
                    f"{found['naive'][key]} in naive"
                )


def _in_fresh_process(way: str, size: str, threads: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks", "loss_memory", "--only", way]
    command += ["--sizes", size, "--threads", str(threads)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output)


def _size(text: str) -> tuple[int, int, int]:
    vocabulary, tokens, hidden = map(int, text.split("x"))
    return vocabulary, tokens, hidden


def _measured(way: str, size: tuple[int, int, int]) -> dict[str, float]:
    """Measure memory (MiB), time and the results of one forward and backward pass."""
    prepared = _prepared_loss if way in WAYS else prepared_update
    measured = prepared(way.removeprefix("update "), size)
    before = _resident_mib()
    began = time.perf_counter()
    results = measured()
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"mib": peak - before, "seconds": seconds, **results}


def _prepared_loss(way: str, size: tuple[int, int, int]) -> Callable[[], Mapping[str, float]]:
    """Make weights and hidden states, and return the function to measure."""
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

    def measured() -> Mapping[str, float]:
        loss = loss_of(hidden, weight, targets)
        loss.backward()
        return {
            "loss": float(loss),
            "grad_hidden": _grad_norm(hidden),
            "grad_weight": _grad_norm(weight),
        }

    return measured


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
    outputs = ("entropy",)  # because Ratchet computes it, too
    found = chunked.apply(hidden, weight, None, targets, 1.0, TRL_CHUNK, None, 1.0, outputs)
    return -found[0].mean()
