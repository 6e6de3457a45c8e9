"""Seconds and memory of the leak guard: prompts of an evaluation against many trained rows.

    python -m benchmarks leaks [--rows 10000 100000 1000000] [--words 60] [--judged 2000]

Each prompt has random words of a vocabulary of 20,000, as JSON lines. One prompt of the evaluation
in a hundred stands among the trained rows as it is, and one with another last word. Seconds of the
processor, with reading the file; memory is what the process holds at most, and what it held
before the comparison. Prints a Markdown table.
"""

from __future__ import annotations

import json
import random
import resource
import tempfile
import time
from argparse import Namespace
from multiprocessing import get_context
from pathlib import Path

from flows.config.presets import load_config
from flows.recipe.held_out_prompts import shared_prompts

VOCABULARY = 20_000


def write(folder: Path, rows: int, judged: int, words: int) -> None:
    """Write `judged.jsonl` and `trained.jsonl`."""
    draw = random.Random(0)
    known = [f"{draw.randrange(16**8):x}" for _ in range(VOCABULARY)]

    def prompt() -> list[str]:
        return draw.choices(known, k=words)

    prompts = [prompt() for _ in range(judged)]
    leaked = [[*text[:-1], "other"] if i % 2 else text for i, text in enumerate(prompts[::50])]
    lines = (leaked[i] if i < len(leaked) else prompt() for i in range(rows))
    for name, texts in (("judged", prompts), ("trained", lines)):
        with (folder / f"{name}.jsonl").open("w") as file:
            file.writelines(json.dumps({"prompt": " ".join(text)}) + "\n" for text in texts)


def measure(folder: str) -> tuple[float, float, float, list[str]]:
    """Return seconds, MiB before and at most, and what was found; in a process of its own."""

    def files(name: str) -> dict[str, str]:
        return {"name": "files", "path": f"{folder}/{name}.jsonl"}

    nothing = dict.fromkeys(
        ("reward_model", "rejection_sampling", "rejection_sft", "preference_pairs", "dpo")
    )
    changes = {"ppo": {"prompts": files("trained")}, "evaluation": {"prompts": files("judged")}}
    config = load_config("tiny", {**nothing, **changes})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start = time.process_time()
    found = shared_prompts(config)
    seconds = time.process_time() - start
    return seconds, before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, found


def run(arguments: Namespace) -> None:
    """Measure and print."""
    print("| rows | s | MiB before | MiB at most | found |\n|---|---|---|---|---|")
    for rows in arguments.rows:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), rows, arguments.judged, arguments.words)
            with get_context("spawn").Pool(1) as pool:
                seconds, before, most, found = pool.apply(measure, (folder,))
        counts = " + ".join(text.partition(" of ")[0] for text in found)
        print(f"| {rows:,} | {seconds:.1f} | {before:.0f} | {most:.0f} | {counts} |", flush=True)
