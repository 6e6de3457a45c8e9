"""All benchmarks, and their arguments.

    python -m benchmarks <benchmark> [arguments]
    python -m benchmarks <benchmark> --help

Each benchmark is a module of this folder with a function `run(arguments)`. Only the chosen one is
imported, because most of them import torch.
"""

from __future__ import annotations

import ast
from argparse import ArgumentParser, RawTextHelpFormatter
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

FOLDER = Path(__file__).parent
UPDATE_SIZES = "32000x256x256,32000x1024x256,32000x4096x256"
LOSS_SIZES = "128256x4096x1024,128256x4096x256,32000x2048x512"


def main() -> None:
    """Run a benchmark, which prints its tables."""
    arguments = parser().parse_args()
    import_module(f"benchmarks.{arguments.benchmark}").run(arguments)


def parser() -> ArgumentParser:
    """Return the parser of all command lines."""
    found = ArgumentParser(
        "python -m benchmarks", description=__doc__, formatter_class=RawTextHelpFormatter
    )
    benchmarks = found.add_subparsers(dest="benchmark", required=True)
    for name, add_arguments in ARGUMENTS.items():
        text = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text())) or ""
        one = benchmarks.add_parser(
            name,
            description=text,
            help=text.partition("\n")[0],
            formatter_class=RawTextHelpFormatter,
        )
        add_arguments(one)
    return found


def _at_once(one: ArgumentParser) -> None:
    one.add_argument("--runs", type=int, default=50)
    one.add_argument("--worker-limit", type=int, help="default: that of `ratchet up`")


def _chaos(one: ArgumentParser) -> None:
    one.add_argument("--seed", type=int, default=0, help="of the choice of processes and moments")
    one.add_argument("--every", type=float, default=12.0, help="mean seconds between two kills")
    one.add_argument("--kills", type=int, default=0, help="at most so many; 0: until it completes")


def _controller(one: ArgumentParser) -> None:
    sizes = [4**power for power in range(3, 9)]
    one.add_argument("--rollouts", type=int, nargs="+", default=sizes)
    one.add_argument("--advantages", nargs="+", default=["gae", "grpo"])
    one.add_argument("--repeats", type=int, default=3)
    one.add_argument("--threads", type=int, default=1)


def _digests(one: ArgumentParser) -> None:
    one.add_argument("--gib", type=float, default=1.0)
    one.add_argument("--repeats", type=int, default=5)


def _gpu(one: ArgumentParser) -> None:
    one.add_argument("--device", default="cuda")
    one.add_argument("--shapes", default="0.5B,1.5B")
    one.add_argument("--methods", default="sft,reward model,dpo,kto,generate,grpo,ppo")
    one.add_argument("--precisions", default="bf16", help="of bf16,bf16-only,autocast,fp32")
    one.add_argument("--attention", default="sdpa", help="e.g. flash_attention_2, packed rows")
    one.add_argument("--batch-size", type=int, default=64, help="sequences per step")
    one.add_argument("--group-size", type=int, default=8, help="responses per prompt")
    one.add_argument("--max-tokens", type=int, default=1024)
    one.add_argument("--micro-batch-tokens", type=int, default=16384)
    one.add_argument("--steps", type=int, default=8, help="timed steps, after 2 untimed")
    one.add_argument("--tiny", action="store_true", help="a tiny model, short rows, everything")


def _grpo(one: ArgumentParser) -> None:
    one.add_argument("data", type=Path)
    one.add_argument("--repeats", type=int, default=5)
    one.add_argument("--steps", type=int, default=6, help="with the first, which is not counted")
    one.add_argument("--prompts", type=int, default=8, help="per step")
    one.add_argument("--group", type=int, default=8, help="responses per prompt")
    one.add_argument("--tokens", type=int, default=96, help="limit of a response")
    one.add_argument("--threads", type=int, default=2)
    one.add_argument("--vllm", action="store_true", help="random weights, with vLLM, too")


def _leaks(one: ArgumentParser) -> None:
    one.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    one.add_argument("--words", type=int, default=60, help="in a prompt")
    one.add_argument("--judged", type=int, default=2000, help="prompts of the evaluation")


def _learning(one: ArgumentParser) -> None:
    parts = ("sft", "reward", "preference", "process")
    one.add_argument("parts", nargs="*", choices=[[], *parts], help="default: all parts")
    one.add_argument("--store", type=Path, help="default: a temporary folder")


def _lifecycle(one: ArgumentParser) -> None:
    one.add_argument("preset")
    one.add_argument("--report-only", action="store_true")


def _loss_memory(one: ArgumentParser) -> None:
    one.add_argument("--repeats", type=int, default=3)
    one.add_argument("--threads", type=int, default=2)
    one.add_argument("--sizes", default=LOSS_SIZES, help="of the first table; '' leaves it out")
    one.add_argument("--updates", default=UPDATE_SIZES, help="of the second table")
    one.add_argument("--only", help="for internal use: measure one implementation")


def _orchestration(one: ArgumentParser) -> None:
    one.add_argument("--steps", type=int, nargs="+", default=[5, 50, 500])
    one.add_argument("--repeats", type=int, default=3)


def _registry(one: ArgumentParser) -> None:
    one.add_argument("--versions", type=int, nargs="+", default=[100, 10_000])
    one.add_argument("--repeats", type=int, default=5)


def _rl_learning(one: ArgumentParser) -> None:
    tasks = ("sums", "stories")
    one.add_argument("tasks", nargs="*", choices=[[], *tasks], help="default: both tasks")
    one.add_argument("--seeds", type=int, nargs="+", default=[0])
    one.add_argument("--sum-rounds", type=int, default=100)
    one.add_argument("--story-rounds", type=int, default=20)
    one.add_argument("--store", type=Path, help="default: a temporary folder")


def _rollouts(one: ArgumentParser) -> None:
    one.add_argument("--repeats", type=int, default=5)
    one.add_argument("--threads", type=int, default=2)


def _sizes(one: ArgumentParser) -> None:
    parts = ("small", "large", "workers")
    one.add_argument("parts", nargs="*", choices=[[], *parts], help="default: all parts")
    one.add_argument("--threads", type=int, default=2)


def _sizing(one: ArgumentParser) -> None:
    one.add_argument("--gpu-gib", type=float, default=79.0, help="memory of a GPU")


def _startup(one: ArgumentParser) -> None:
    one.add_argument("--repeats", type=int, default=5)
    one.add_argument("--beside", type=Path, help="another checkout to measure")


def _sync(one: ArgumentParser) -> None:
    sizes = (1, 64, 1024, 4096)
    one.add_argument("--mib", type=int, nargs="+", choices=sizes, default=list(sizes[:3]))
    one.add_argument("--repeats", type=int, default=5)
    one.add_argument("--threads", type=int, default=1)
    one.add_argument("--no-vllm", action="store_true")


def _training(one: ArgumentParser) -> None:
    one.add_argument("data", type=Path)
    one.add_argument("--repeats", type=int, default=5)
    one.add_argument("--steps", type=int, default=12)
    one.add_argument("--batch-size", type=int, default=32)
    one.add_argument("--max-tokens", type=int, default=384)
    one.add_argument("--threads", type=int, default=2)
    one.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    one.add_argument("--rows", help="default: all rows")
    one.add_argument("--models", default="tinystories,scratch")


def _workers(one: ArgumentParser) -> None:
    one.add_argument("--workers", type=int, default=2)
    one.add_argument("--repeats", type=int, default=5)
    one.add_argument("--steps", type=int, default=6)


ARGUMENTS: Mapping[str, Callable[[ArgumentParser], None]] = {
    "at_once": _at_once,
    "chaos": _chaos,
    "controller": _controller,
    "digests": _digests,
    "gpu": _gpu,
    "grpo": _grpo,
    "leaks": _leaks,
    "learning": _learning,
    "lifecycle": _lifecycle,
    "loss_memory": _loss_memory,
    "orchestration": _orchestration,
    "registry": _registry,
    "rl_learning": _rl_learning,
    "rollouts": _rollouts,
    "sizes": _sizes,
    "sizing": _sizing,
    "startup": _startup,
    "sync": _sync,
    "training": _training,
    "workers": _workers,
}

if __name__ == "__main__":
    main()
