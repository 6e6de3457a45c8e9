"""Show that training works: compare trained models with simple baselines, on real data.

    python -m benchmarks learning                 # all parts, 5 to 15 minutes on one core
    python -m benchmarks learning reward process  # some parts

SFT and the preference losses are compared with the model before training, reward models with a bag
of words on the same pairs, and a process reward model with the majority class. Needs the shared
data (RATCHET_SHARED, or a folder `shared` next to the repository).
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

from benchmarks import learning_recipes as recipes
from benchmarks.learning_baselines import (
    bag_of_words,
    balanced_accuracy,
    mcnemar,
    mean_with_interval,
    share_with_interval,
)
from benchmarks.learning_measures import judged, policy_margins, reward_margins
from stages.runtime.manifest import Manifest
from stages.runtime.store import Store
from tests.stages.running import finish

BASELINES = {1: "bag of words", 2: "words and pairs of words"}
ONE_STEP = 0.01
"""Epochs of SFT, i.e. one step, to make a policy from random weights for the reward model."""


def run(arguments: Namespace) -> None:
    """Run the selected parts and print their tables."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    root = arguments.store or Path(tempfile.mkdtemp(prefix="ratchet-learning-"))
    for name in arguments.parts or PARTS:
        started = time.monotonic()
        for line in PARTS[name](shared_data(), root):
            print(line, flush=True)
        print(f"\n({name}: {time.monotonic() - started:.0f} s)\n", flush=True)


def shared_data() -> Path:
    """Return the folder of the real data."""
    beside = Path(__file__).resolve().parents[2] / "shared"
    return Path(os.environ.get("RATCHET_SHARED", beside)) / "data"


def sft(data: Path, root: Path) -> Iterator[str]:
    """Measure the held-out loss before and after SFT on real instructions."""
    task = recipes.instructions(data)
    train, heldout = task.write(root / "sft")
    config = {
        "base": recipes.story_model(data),
        "chat_template": recipes.STORY_TEMPLATE,
        "data": train,
        "eval_data": heldout,
        "training": recipes.training(3, 1e-3),
    }
    metrics = finish(Store(root / "store"), "sft", config).metrics
    yield "| data | rows | held-out loss before | after |\n|---|---|---|---|"
    yield (
        f"| {task.name} | {len(task.train)} | {metrics['heldout_loss_before']:.3f} "
        f"| {metrics['heldout_loss']:.3f} |"
    )


def reward(data: Path, root: Path) -> Iterator[str]:
    """Compare reward models with a bag of words and with a stronger baseline, on the same pairs."""
    yield (
        "| data | pairs, held out | reward model | baseline | accuracy of the baseline "
        "| difference | McNemar p | settings of the baseline |\n|---|---|---|---|---|---|---|---|"
    )
    for name, recipe in recipes.REWARD_RECIPES.items():
        folder, task = root / name, recipe.rows(data)
        ours = reward_margins(*train_reward(recipe, data, folder, Store(root / "store"))) > 0
        for longest, beside in BASELINES.items():
            baseline = bag_of_words(*recipes.parts_of(recipe.task(data)), longest=longest)
            theirs = baseline.margins > 0
            yield (
                f"| {task.name} | {len(task.train)}, {len(task.heldout)} "
                f"| {share_with_interval(ours)} | {beside} | {share_with_interval(theirs)} "
                f"| {mean_with_interval(ours.astype(float) - theirs.astype(float))} "
                f"| {mcnemar(ours, theirs):.2g} | {baseline.description} |"
            )


def train_reward(
    recipe: recipes.RewardRecipe, data: Path, folder: Path, store: Store
) -> tuple[Path, dict[str, object]]:
    """Train a reward model from scratch.

    Returns:
        Its directory, and the held-out pairs as the `data` of a config.
    """
    task = recipe.rows(data)
    train, heldout = task.write(folder)
    base = recipes.make_scratch_base(
        task.train,
        folder / "base",
        hidden_size=64,
        layers=recipe.layers,
        vocabulary_size=recipe.vocabulary_size,
    )
    spoken = recipes.write_rows(folder / "spoken.jsonl", recipes.both_sides(task.train))
    pretraining = {
        "base": base,
        "chat_template": "roles",
        "data": spoken,
        "training": recipes.training(ONE_STEP, 2e-3),
    }
    policy = finish(store, "sft", pretraining)
    config = {"data": train, "eval_data": heldout, "training": recipe.settings}
    model = finish(store, "reward_model", config, {"policy": policy})
    return store.artifact_dir(model), heldout


def preference(data: Path, root: Path) -> Iterator[str]:
    """Measure for each preference loss how much it raises the margins of held-out pairs."""
    store, task = Store(root / "store"), recipes.polite(data)
    train, heldout = task.write(root / "preference")
    start = short_sft(data, root / "preference", store, task)
    yield (
        f"| loss ({task.name}) | gain in margin, nats | pairs whose margin rose "
        "| preferred after | before |\n|---|---|---|---|---|"
    )
    for name in recipes.PREFERENCE_RATES:
        trained = train_preference(name, start, store, {"data": train, "eval_data": heldout})
        per_token = name in recipes.PER_TOKEN
        after, before = (
            policy_margins(store.artifact_dir(m), heldout, per_token=per_token)
            for m in (trained, start)
        )
        unit = " per token" if per_token else ""
        yield (
            f"| {name} | {mean_with_interval(after - before)}{unit} "
            f"| {share_with_interval(after > before)} | {share_with_interval(after > 0)} "
            f"| {share_with_interval(before > 0)} |"
        )


def short_sft(data: Path, folder: Path, store: Store, task: recipes.Task) -> Manifest:
    """Fine-tune the pretrained model on the chosen responses for half an epoch."""
    spoken = recipes.write_rows(folder / "spoken.jsonl", recipes.chosen_side(task.train))
    config = {
        "base": recipes.story_model(data),
        "chat_template": recipes.STORY_TEMPLATE,
        "data": spoken,
        "training": recipes.training(0.5, 1e-3),
    }
    return finish(store, "sft", config)


def train_preference(
    name: str, start: Manifest, store: Store, data: Mapping[str, object], **training: Any
) -> Manifest:
    """Train the policy `start` on pairs with a loss; `training` replaces settings of the recipe."""
    settings = recipes.training(1, recipes.PREFERENCE_RATES[name]) | training
    loss = {"name": name, **recipes.LOSS_SETTINGS.get(name, {})}
    config = {"loss": loss, **data, "training": settings}
    stage = "kto" if name == "kto" else "dpo"
    return finish(store, stage, config, {"policy": start, "reference": start})


def process(data: Path, root: Path) -> Iterator[str]:
    """Compare a process reward model with the majority class (always right)."""
    yield (
        "| steps of | labelled, held out | accuracy | baseline | difference | balanced "
        "| McNemar p |\n|---|---|---|---|---|---|---|"
    )
    store, folder = Store(root / "store"), root / "process"
    task = recipes.mistakes(data, *recipes.PROCESS_TASKS)
    directory = train_process(task, folder, store, recipes.training(6, 1e-3))
    for name in (*recipes.PROCESS_TASKS, "all three"):
        rows = [row for row in task.heldout if name in (row["task"], "all three")]
        source = recipes.write_rows(folder / f"{name}.jsonl".replace(" ", "_"), rows)
        says, is_right = judged(directory, source)
        hits = says == is_right
        yield (
            f"| {name} | {len(hits)} | {share_with_interval(hits)} | {is_right.mean():.3f} "
            f"| {mean_with_interval(hits.astype(float) - is_right.astype(float))} "
            f"| {balanced_accuracy(says, is_right):.3f} | {mcnemar(hits, is_right):.1g} |"
        )


def train_process(
    task: recipes.Task,
    folder: Path,
    store: Store,
    settings: Mapping[str, object],
    *,
    layers: int = 2,
) -> Path:
    """Train a process reward model from scratch and return its directory."""
    train, heldout = task.write(folder)
    base = recipes.make_scratch_base(task.train, folder / "base", hidden_size=64, layers=layers)
    spoken = recipes.write_rows(folder / "spoken.jsonl", recipes.whole_solutions(task.train))
    pretraining = {
        "base": base,
        "chat_template": "roles",
        "data": spoken,
        "training": recipes.training(0.05, 2e-3),
    }
    policy = finish(store, "sft", pretraining)
    config = {"data": train, "eval_data": heldout, "training": settings}
    return store.artifact_dir(finish(store, "process_reward", config, {"policy": policy}))


PARTS = {"sft": sft, "reward": reward, "preference": preference, "process": process}
