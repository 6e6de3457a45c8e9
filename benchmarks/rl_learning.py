"""Show that reinforcement learning works: held-out numbers before and after, on two tasks.

    python -m benchmarks rl_learning                    # both tasks, about 5 minutes on one core
    python -m benchmarks rl_learning sums --seeds 0 1   # one task, some seeds

`sums`: GRPO teaches a small model to add two numbers. It starts from SFT on demonstrations of which
three in four are one too high, and the reward only says whether an answer is right. `stories`: four
algorithms make the stories of a pretrained model happier by a lexicon, under a KL penalty. Both are
judged on prompts that no step used. `stories` needs the shared data (RATCHET_SHARED, or a folder
`shared` beside the repository).
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

from benchmarks import rl_recipes as recipes
from benchmarks.learning import shared_data
from benchmarks.learning_baselines import mean_with_interval
from stages.files import read_jsonl
from stages.runtime.manifest import Manifest
from stages.runtime.store import Store


def run(arguments: Namespace) -> None:
    """Run the selected tasks and print their tables."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    root = arguments.store or Path(tempfile.mkdtemp(prefix="ratchet-rl-"))
    for name in arguments.tasks or TASKS:
        started = time.process_time()
        for line in TASKS[name](root, arguments):
            print(line, flush=True)
        print(f"\n({name}: {time.process_time() - started:.0f} s of the processor)\n", flush=True)


def sums(root: Path, arguments: Namespace) -> Iterator[str]:
    """Compare pass@1 after SFT and after GRPO, per seed of data, weights and sampling."""
    yield "| seed | pass@1 after SFT | after GRPO | gain per sum | rounds, best | training, s |"
    yield "|---|---|---|---|---|---|"
    for seed in arguments.seeds:
        folder = root / f"sums-{seed}"
        store, task = Store(folder / "store"), recipes.write_sums(folder, seed=seed)
        start = recipes.weak_start(store, task, seed=seed)
        began, steps = time.process_time(), arguments.sum_rounds
        policy = recipes.learn_sums(store, task, start, seed=seed, steps=steps)
        seconds = time.process_time() - began
        before, after = pass_rates(store, recipes.judge_sums(store, task, start, policy))
        gain = mean_with_interval([b - a for a, b in zip(before, after, strict=True)])
        yield (
            f"| {seed} | {mean_with_interval(before)} | {mean_with_interval(after)} | {gain} "
            f"| {steps}, {policy.metrics['best_step']:.0f} | {seconds:.0f} |"
        )


def pass_rates(store: Store, judged: Manifest) -> tuple[Sequence[float], Sequence[float]]:
    """Return the share of right responses to each prompt, of the baseline and of the policy."""
    found: dict[str, dict[str, list[float]]] = {"baseline": {}, "policy": {}}
    for row in read_jsonl(store.artifact_dir(judged) / "samples.jsonl"):
        found[row["policy"]].setdefault(row["prompt_id"], []).append(row["reward"])
    before, after = (
        [sum(rewards) / len(rewards) for _, rewards in sorted(of_prompts.items())]
        for of_prompts in found.values()
    )
    return before, after


def stories(root: Path, arguments: Namespace) -> Iterator[str]:
    """Compare the lexicon's score of stories before and after each algorithm."""
    store, data = Store(root / "stories"), shared_data()
    start = recipes.story_start(store, data)
    yield (
        "| algorithm | seed | held-out score before | after | difference in standard errors "
        "| KL, nats per response | response tokens |"
    )
    yield "|---|---|---|---|---|---|---|"
    for seed in arguments.seeds:
        policies = {
            name: recipes.learn_stories(
                store, data, start, algorithm, seed=seed, steps=arguments.story_rounds
            )
            for name, algorithm in NAMES.items()
        }
        judged = recipes.judge_stories(store, data, start, policies)
        summary = json.loads((store.artifact_dir(judged) / "summary.json").read_text())
        before = summary["baseline"]
        for name, algorithm in NAMES.items():
            after = summary["policy" if name == list(NAMES)[-1] else name]
            error = (before["reward_stderr"] ** 2 + after["reward_stderr"] ** 2) ** 0.5
            gain = (after["mean_reward"] - before["mean_reward"]) / error
            yield (
                f"| {algorithm} | {seed} | {_with_error(before)} | {_with_error(after)} "
                f"| {gain:.1f} | {after['kl_to_baseline']:.2f} | {after['response_tokens']:.1f} |"
            )


def _with_error(numbers: dict[str, float]) -> str:
    return f"{numbers['mean_reward']:.3f} ± {numbers['reward_stderr']:.3f}"


NAMES = {name.lower().replace("+", "p"): name for name in recipes.ALGORITHMS}
"""Role of a policy in the evaluation -> its algorithm."""
TASKS = {"sums": sums, "stories": stories}
