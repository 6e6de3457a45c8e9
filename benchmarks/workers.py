"""Data-parallel scaling of the plain engine, and time and size of checkpoints.

    python -m benchmarks workers [--workers 2] [--repeats 5] [--steps 6]

Scaling: one process and then `--workers` processes, with one thread each, make the same optimizer
steps on the same rows of different lengths (with gloo; gradients are added up once per step).
Efficiency is seconds(1) / (workers * seconds(n)). It is meaningful only on a machine with at least
one free core per worker. The final weights of both must agree.

Checkpoints: time to save weights, optimizer and schedule (fsynced, with checksums), time to resume
from them (checksums are verified), and size on disk. Prints two Markdown tables with values as
median [smallest, largest].
"""

from __future__ import annotations

import random
import socket
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.multiprocessing.spawn import spawn
from transformers import LlamaConfig, LlamaForCausalLM

from training_core import checkpoint
from training_core.data.batching import collate, cut_by_tokens, share_of_rank
from training_core.dist_info import DistInfo
from training_core.distributed import barrier, connected
from training_core.engine.torch_engine import TorchEngine
from training_core.loop import train_steps
from training_core.objectives.supervised import supervised
from training_core.types import Batch, Example

VOCABULARY = 8192
HIDDEN_SIZES = {"small": 256, "large": 512}
BATCH_SIZE = 32
MICRO_BATCH_TOKENS = 1024
MAX_TOKENS = 256
TOLERANCE = 1e-4
"""For the final weights: several ranks sum in another order, and AdamW amplifies the rounding."""


def run(arguments: Namespace) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    print("| model | parameters | 1 process, s per step | workers | s per step | efficiency |")
    print("|---|---|---|---|---|---|")
    for name in HIDDEN_SIZES:
        print(_scaling_line(name, arguments), flush=True)
    print("\n| model | size, MiB | save, s | resume, s |\n|---|---|---|---|")
    for name in HIDDEN_SIZES:
        print(_checkpoint_line(name, arguments.repeats), flush=True)


# ------------------------------------------------------------------- scaling


def _scaling_line(name: str, arguments: Namespace) -> str:
    alone, together = [], []
    for _ in range(arguments.repeats):
        alone.append(_run(name, 1, arguments.steps))
        together.append(_run(name, arguments.workers, arguments.steps))
    gap = float((alone[0][1] - together[0][1]).abs().max())
    if gap > TOLERANCE:
        raise SystemExit(
            f"expected the same weights from 1 and several workers, found a difference of {gap}"
        )
    one, several = [seconds for seconds, _ in alone], [seconds for seconds, _ in together]
    ratios = [a / (arguments.workers * b) for a, b in zip(one, several, strict=True)]
    size = sum(p.numel() for p in _model(name).parameters()) / 1e6
    steps = f"{_spread(one)} | {arguments.workers} | {_spread(several)}"
    return f"| {name} | {size:.1f}M | {steps} | {_spread(ratios)} |"


def _run(name: str, workers: int, steps: int) -> tuple[float, torch.Tensor]:
    """Return the slowest rank's seconds per step, after a warm-up step, and the final embedding."""
    with tempfile.TemporaryDirectory() as folder:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        spawn(_work, (workers, name, steps, address, folder), nprocs=workers)
        results = [torch.load(path, weights_only=True) for path in Path(folder).iterdir()]
    return max(result["seconds"] for result in results), results[0]["embedding"]


def _work(rank: int, workers: int, name: str, steps: int, address: str, folder: str) -> None:  # noqa: PLR0917 - spawned by position
    torch.set_num_threads(1)
    dist_info = DistInfo(rank, workers, rank)
    with connected(dist_info, address):
        model = _model(name).train()
        engine = TorchEngine(model, learning_rate=1e-3, schedule=lambda _: 1.0, dist_info=dist_info)
        batches = (_share(step, dist_info) for step in range(steps + 1))
        reports = train_steps(engine, supervised, batches, dist_info=dist_info)
        next(reports)
        barrier(dist_info)
        began = time.perf_counter()
        for _ in reports:
            pass
        seconds = (time.perf_counter() - began) / steps
    embedding = model.get_input_embeddings().weight.detach()
    torch.save({"seconds": seconds, "embedding": embedding}, Path(folder, f"{rank}.pt"))


def _share(step: int, dist_info: DistInfo) -> Sequence[Batch]:
    """Return the micro-batches of one rank, of a batch of rows with different lengths."""
    draw = random.Random(step)
    rows = [_row(draw) for _ in range(BATCH_SIZE)]
    cuts = cut_by_tokens(
        [len(row) for row in rows], MICRO_BATCH_TOKENS, world_size=dist_info.world_size
    )
    whole = [collate([rows[i] for i in members], 0) for members in cuts]
    costs = [batch.input_ids.numel() for batch in whole]
    return share_of_rank(whole, costs, dist_info.rank, dist_info.world_size, even=False)


def _row(draw: random.Random) -> Example:
    size = draw.randrange(MAX_TOKENS // 8, MAX_TOKENS)
    prompt = size // 3
    ids = tuple(draw.randrange(1, VOCABULARY) for _ in range(size))
    return Example(ids, (0,) * prompt + (1,) * (size - prompt))


def _model(name: str) -> Any:
    hidden_size = HIDDEN_SIZES[name]
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=4,
        num_attention_heads=hidden_size // 32,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config)


# --------------------------------------------------------------- checkpoints


def _checkpoint_line(name: str, repeats: int) -> str:
    model = _model(name).train()
    engine = TorchEngine(model, learning_rate=1e-3, schedule=lambda _: 1.0)
    for _ in train_steps(engine, supervised, [_share(0, DistInfo())]):
        pass
    saving, resuming, mib = [], [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for step in range(1, repeats + 1):
            began = time.perf_counter()
            state = {"engine": engine.state_dict()}
            saved = checkpoint.save(root, step, {"model": model}, state, keep=1)
            saving.append(time.perf_counter() - began)
            mib = sum(p.stat().st_size for p in saved.directory.rglob("*") if p.is_file()) / 2**20
            began = time.perf_counter()
            found = checkpoint.complete_checkpoints([root])[0]
            engine.load_state_dict(checkpoint.load(found, {"model": model})["engine"])
            resuming.append(time.perf_counter() - began)
    return f"| {name} | {mib:.1f} | {_spread(saving)} | {_spread(resuming)} |"


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.3g} [{min(values):.3g}, {max(values):.3g}]"
