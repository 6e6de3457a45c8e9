"""What the proof of a weight sync costs, compared with the sync itself.

    python -m benchmarks sync [--mib 1 64 1024] [--repeats 5] [--threads 1] [--no-vllm]

The first table has the digests: seconds of the processor to copy weights of float32 within the
memory, and to digest them. The second table has whole syncs of a random policy, per engine: seconds
on the clock of `sync`, and of the proof in it, i.e. the digests of trainer and engine. The engine
is inline, or in a process of its own, which gets the weights through shared memory or by a
broadcast of gloo. There the digests are assumed to take as long as here. Medians of the repeats in
the first table, and the fastest of them in the second, since waiting for other processes of the
machine cannot be left out there.
"""

from __future__ import annotations

import os
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch

from training_core.data.chat import CHAT_TEMPLATES
from training_core.models import hub, scratch
from training_core.rollout import transformers_engine, vllm_engine, vllm_worker
from training_core.rollout.digest import content_digest, fingerprint
from training_core.rollout.engine import RolloutEngine, sync
from training_core.rollout.engine_spec import EngineSpec
from training_core.rollout.local_engines import LocalHost
from training_core.rollout.separate_engines import SeparateEngines
from training_core.rollout.weight_sending import Way, WeightSender

SHAPES = {1: (128, 1), 64: (512, 4), 1024: (2048, 4), 4096: (4096, 4)}
"""Size of a policy in MiB -> width and number of layers: 64 * width^2 bytes per layer."""

TRANSPORTS: dict[str, Way] = {"shared memory": "memory", "broadcast (gloo)": "collective"}
"""How weights reach an engine in a process of its own: colocated, and apart on another machine."""

VLLM_LIMIT_MIB = 64
"""On a CPU vLLM's layers are read by matrix products, which take minutes for wide layers."""


def run(arguments: Namespace) -> None:
    """Measure and print."""
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    torch.set_num_threads(arguments.threads)
    print(
        "| MiB | copy, s | content digest, s | ratio | fingerprint, s | ratio |\n"
        + "|---" * 6
        + "|"
    )
    for mib in arguments.mib:
        print(_digests(mib, arguments.repeats), flush=True)
    print("\n| engine | MiB | sync, s | proof in it, s | proof / rest |\n" + "|---" * 5 + "|")
    for mib in arguments.mib:
        kinds = ["transformers"]
        if mib <= VLLM_LIMIT_MIB and not arguments.no_vllm:
            kinds.append("vllm")
        for kind in kinds:
            for row in _syncs(kind, mib, arguments.repeats):
                print(row, flush=True)


def _digests(mib: int, repeats: int) -> str:
    weights = [torch.randn(2**18) for _ in range(mib)]  # 1 MiB each
    others = [torch.zeros(2**18) for _ in range(mib)]
    named = [(str(number), tensor) for number, tensor in enumerate(weights)]

    def copy_all() -> None:
        for mine, theirs in zip(others, weights, strict=True):
            mine.copy_(theirs)

    seconds = [
        _median_seconds(what, repeats)
        for what in (
            copy_all,
            lambda: content_digest(weights, torch.float32),
            lambda: fingerprint(named),
        )
    ]
    copied, content, named_digest = seconds
    return (
        f"| {mib} | {copied:.3g} | {content:.3g} | {content / copied:.2f} | {named_digest:.3g} | "
        f"{named_digest / copied:.2f} |"
    )


def _syncs(kind: Any, mib: int, repeats: int) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        width, layers = SHAPES[mib]
        tokenizer = scratch.make_tokenizer(["word"], CHAT_TEMPLATES["roles"])
        architecture = scratch.Architecture(
            hidden_size=width,
            num_layers=layers,
            num_heads=max(2, width // 64),
            intermediate_size=4 * width,
            max_positions=128,
        )
        policy = hub.freeze(scratch.make_policy(architecture, tokenizer, seed=0))
        hub.save(policy, tokenizer, Path(folder))
        spec = EngineSpec(kind, Path(folder), tokenizer, torch.float32, "cpu", 128, 0.4)
        proof = [0.0]
        with closing(spec.open()) as engine, _timed_digests(proof):
            seconds = _sync_seconds(engine, policy, repeats, proof)
        yield _row(f"{kind}, inline", mib, *seconds)
        for transport, way in TRANSPORTS.items():
            host = LocalHost(1, silence_seconds=600)
            with closing(SeparateEngines(spec, host, weights=WeightSender(way))) as engines:
                whole, _ = _sync_seconds(engines, policy, repeats, proof)
            yield _row(f"{kind}, {transport}", mib, whole, seconds[1])


def _row(engine: str, mib: int, whole: float, proof: float) -> str:
    return f"| {engine} | {mib} | {whole:.3g} | {proof:.3g} | {proof / (whole - proof):.2f} |"


def _sync_seconds(
    engine: RolloutEngine, policy: Any, repeats: int, proof: list[float]
) -> tuple[float, float]:
    """Return seconds of the fastest sync, and of the digests in it."""
    found = []
    for version in range(repeats + 1):
        proof[0], started = 0.0, time.perf_counter()
        sync(engine, policy, version)
        found.append((time.perf_counter() - started, proof[0]))
    return min(found[1:])  # the first one warms up


@contextmanager
def _timed_digests(seconds: list[float]) -> Iterator[None]:
    """Add the time of all digests of inline engines to `seconds[0]`."""

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                seconds[0] += time.perf_counter() - started

        return run

    places = [
        (transformers_engine, "fingerprint"),
        (vllm_worker, "sums_in_use"),
        (vllm_engine, "content_digest"),
    ]
    before = [getattr(module, name) for module, name in places]
    for (module, name), function in zip(places, before, strict=True):
        setattr(module, name, timed(function))
    try:
        yield
    finally:
        for (module, name), function in zip(places, before, strict=True):
            setattr(module, name, function)


def _median_seconds(what: Callable[[], object], repeats: int) -> float:
    """Return seconds of the processor, so that other processes of the machine matter less."""
    seconds = []
    for number in range(repeats + 1):
        started = time.process_time()
        what()
        if number:  # the first one warms up
            seconds.append(time.process_time() - started)
    return median(seconds)
