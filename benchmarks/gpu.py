"""Training and sampling on one GPU: tokens per second, model FLOPs utilisation, peak memory.

    python -m benchmarks gpu [--shapes 0.5B,1.5B] [--precisions bf16,autocast]
    python -m benchmarks gpu --device cpu --tiny        # a quick test of all methods, without GPU

Needs only torch, transformers and this repository (`PYTHONPATH=.`). The models have the shapes of
Qwen2.5 and random weights. The rows have random tokens and different lengths: about a third is the
prompt, and two thirds are the response. Each method computes the same steps as its stage, including
the forward passes of the reference. `generate` samples groups with the engine `transformers`. A
step of `grpo` and `ppo` is a round without its sampling, on made-up rollouts of as many sequences.

The precisions: `bf16` has bfloat16 weights and float32 masters that the optimizer updates, as the
stages do; `bf16-only` has no masters; `autocast` has float32 weights and computes in bfloat16.

The token count excludes padding. A prompt that two responses share counts twice; `generate` counts
only sampled tokens. The model FLOPs are the least number that the computation needs; a prompt that
is computed once counts once. With N the parameters of the body, V the vocabulary, H the hidden size
and L the layers:

    forward  = 2 N tokens + 2 V H trained tokens + 4 L H (sum over tokens of the attended tokens)
    step     = 3 forward; for DPO and KTO 1 more for the reference; for KTO's mismatched responses
               1 forward under the policy and 1 under the reference
    generate = forward
    round    = 5 forward: old log-probabilities, reference, and a step; for PPO 4 of the critic,
               which has no output of V, too

Utilisation is model FLOPs per second, divided by the dense bf16 peak of the device
(`PEAK_TFLOPS`).
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Mapping
from statistics import median

import torch

from benchmarks.gpu_models import PRECISIONS, Case, Measured
from benchmarks.gpu_reinforcement import reinforce
from benchmarks.gpu_rollouts import generate
from benchmarks.gpu_training import train

METHODS: Mapping[str, Callable[[Case], Measured]] = {
    "sft": train,
    "reward model": train,
    "dpo": train,
    "kto": train,
    "generate": generate,
    "grpo": reinforce,
    "ppo": reinforce,
}
PEAK_TFLOPS = {
    "H100 PCIe": 756,
    "H100": 989,
    "H200": 989,
    "B200": 2250,
    "A100": 312,
    "L40S": 362,
    "L4": 121,
    "A10": 125,
    "RTX 4090": 165,
}
"""Part of a device's name -> its dense bf16 peak, from the manufacturer's data sheet."""


def run(arguments: Namespace) -> None:
    """Measure and print."""
    if arguments.tiny:
        arguments.shapes, arguments.precisions, arguments.steps = "tiny", ",".join(PRECISIONS), 2
        arguments.batch_size, arguments.group_size = 8, 4
        arguments.max_tokens, arguments.micro_batch_tokens = 64, 256
    device = torch.device(arguments.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    print(f"{name}, torch {torch.__version__}, {arguments.attention}\n")
    print(
        "| method | model | precision | parameters | tokens/s | s per step [min, max] | MFU "
        "| peak GiB |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for shape in arguments.shapes.split(","):
        for method in arguments.methods.split(","):
            for precision in arguments.precisions.split(","):
                case = Case(
                    method=method,
                    shape=shape,
                    precision=precision,
                    device=device,
                    attention=arguments.attention,
                    batch_size=arguments.batch_size,
                    group_size=arguments.group_size,
                    max_tokens=arguments.max_tokens,
                    micro_batch_tokens=arguments.micro_batch_tokens,
                    steps=arguments.steps,
                )
                print(_line(case), flush=True)


def _line(case: Case) -> str:
    device = case.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    found = METHODS[case.method](case)
    total, peak = sum(found.seconds), _peak(device)
    used = f"{found.flops / total / peak:.1%}" if peak else "unknown device"
    memory = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else math.nan
    spread = f"{median(found.seconds):.3f} [{min(found.seconds):.3f}, {max(found.seconds):.3f}]"
    size, rate = f"{found.parameters / 1e6:,.1f}M", f"{found.tokens / total:,.0f}"
    return (
        f"| {case.method} | {case.shape} | {case.precision} | {size} | {rate} | {spread} | {used} "
        f"| {memory:.1f} |"
    )


def _peak(device: torch.device) -> float | None:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((t * 1e12 for key, t in PEAK_TFLOPS.items() if key in name), None)
