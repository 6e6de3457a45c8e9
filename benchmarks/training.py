"""Training side by side: tokens per second of Ratchet and of TRL's trainers.

    python benchmarks/training.py DATA [--repeats 5] [--steps 12] [--threads 2] [--rows sft,dpo]

DATA is a folder with the files of `ROWS` and a small pretrained model. Both sides start from the
same weights and make the same optimizer steps on the same token ids (TRL's own), batch by batch,
in fp32, in one process, in turn. Neither evaluates, saves or writes curves. TRL has several
settings that give the same training; the first run tries each, and the fastest is the opponent.

Tokens are those of the rows, padding not counted, each once: a prompt that Ratchet computes once
for two responses counts twice, as it does for TRL. Time is that of the steps, and of the
reference's log-probabilities where there is a reference. Prints one Markdown table: medians, and
the ratio of each repeat as median [smallest, largest]; and the first losses of both sides.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from training_rows import ROWS, Row, load_texts, start
from training_trl import Variant, run_trl, tokenised, variants

from stages.batches import Examples, Pairs, micro_batches, over_all, sharing_pays
from stages.rated import Rated, rated_batches
from stages.settings.training import Training
from training_core.algorithms.preference_losses import PREFERENCE_LOSSES, implicit_rewards
from training_core.algorithms.reward_losses import bradley_terry
from training_core.algorithms.unpaired_losses import kto, mismatched_kl
from training_core.data.batching import batch_indices
from training_core.engine.torch_engine import TorchEngine
from training_core.loop import train_steps
from training_core.models.causal_lm import sequence_logprobs
from training_core.models.scalar_head import sequence_scores
from training_core.objectives.preference import pairwise_reward, preference
from training_core.objectives.supervised import supervised
from training_core.objectives.unpaired import unpaired
from training_core.types import Example, Pair
from training_core.types import Rated as RatedExample

LEARNING_RATE = 1e-4
BETA = 0.1
COMPARED_STEPS = 3
LOSS_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Timed:
    """One training run.

    Attributes:
        seconds: of all that is timed.
        losses: of each step.
    """

    seconds: float
    losses: Sequence[float]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=384)
    parser.add_argument("--micro-batch-tokens", type=int, default=None, help="None: the default")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--models", default="tinystories,scratch")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print("| row | model | Ratchet tokens/s | TRL tokens/s | ratio | TRL's setting | losses |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for model in arguments.models.split(","):
        for name in arguments.rows.split(","):
            print(_line(name, model, arguments), flush=True)


def _line(name: str, model_name: str, arguments: argparse.Namespace) -> str:
    row = ROWS[name]
    budget = arguments.micro_batch_tokens
    training = Training(
        batch_size=arguments.batch_size,
        max_tokens=arguments.max_tokens,
        **({"micro_batch_tokens": budget} if budget else {}),
    )
    with tempfile.TemporaryDirectory() as folder:
        model, tokenizer = start(model_name, row, arguments.data, Path(folder))
        size = arguments.steps * arguments.batch_size
        texts = load_texts(
            row, arguments.data, tokenizer, limit=size, max_tokens=arguments.max_tokens
        )
        order = [
            i
            for step in range(arguments.steps)
            for i in batch_indices(len(texts), arguments.batch_size, 1.0, seed=0, step=step)
        ]
        choices = variants(row.method, arguments.batch_size)
        in_turn = [texts[i] for i in order]
        items, tokens = _items(row, tokenised(row.method, in_turn, model, tokenizer, training), order)

        def ours() -> Timed:
            return _run_ours(row.method, deepcopy(model), items, training, tokenizer.pad_token_id)

        def theirs(variant: Variant) -> Timed:
            seconds, losses = run_trl(
                row.method, in_turn, deepcopy(model), tokenizer, training, variant, LEARNING_RATE
            )
            return Timed(seconds, losses)

        return _compared(name, model_name, tokens, ours, theirs, choices, arguments.repeats)


def _compared(
    name: str,
    model_name: str,
    tokens: int,
    ours: Callable[[], Timed],
    theirs: Callable[[Variant], Timed],
    choices: Sequence[Variant],
    repeats: int,
) -> str:
    tried = {variant: theirs(variant) for variant in (choices[0], *choices)}  # the first warms up
    best = min(tried, key=lambda v: tried[v].seconds)
    ours()
    pairs: list[tuple[Timed, Timed]] = []
    for _ in range(repeats):
        gc.collect()
        pairs.append((ours(), theirs(best)))
    mine, other = pairs[-1][0].losses[:COMPARED_STEPS], pairs[-1][1].losses[:COMPARED_STEPS]
    gap = max(abs(a - b) for a, b in zip(mine, other, strict=True))
    if gap > LOSS_TOLERANCE:
        raise SystemExit(f"{name}: the losses differ, so the two sides train different things: "
                         f"Ratchet {mine}, TRL {other}")
    ratios = [b.seconds / a.seconds for a, b in pairs]
    rates = [f"{tokens / median(t.seconds for t in side):,.0f}" for side in zip(*pairs, strict=True)]
    spread = f"{median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
    losses = " ".join(f"{a:.4f}" for a in mine) + f", gap {gap:.0e}"
    return f"| {name} | {model_name} | {rates[0]} | {rates[1]} | {spread} | {best} | {losses} |"


# ------------------------------------------------------------------- Ratchet's side


def _items(row: Row, rows: Sequence[dict[str, Any]], order: Sequence[int]) -> tuple[Any, int]:
    """What Ratchet trains on, so that batch k holds TRL's batch k; and its number of tokens."""
    made = [_item(row.method, r) for r in rows]
    tokens = sum(len(e) for item in made for e in item[: 1 if row.method == "kto" else 2])
    back = [0] * len(order)
    for place, i in enumerate(order):
        back[i] = place
    made = [made[place] for place in back]
    labels = [bool(rows[place].get("label")) for place in back]
    return (made, labels), tokens


def _item(method: str, row: dict[str, Any]) -> tuple[Example, ...]:
    """Sequences of one of TRL's rows; for KTO the second one is the mismatched response."""
    if method == "sft":
        mask = tuple(int(label != -100) for label in row["labels"])
        return (Example(tuple(row["input_ids"]), mask),)
    prompt = row["prompt_ids"]
    responses = ("completion_ids", "KL_completion_ids") if method == "kto" else SIDES
    return tuple(
        Example((*prompt, *row[side]), (0,) * len(prompt) + (1,) * len(row[side]))
        for side in responses
    )


SIDES = ("chosen_ids", "rejected_ids")


def _run_ours(method: str, model: Any, items: Any, training: Training, pad_id: int) -> Timed:
    """What the stages do between reading data and saving the model."""
    made, labels = items
    device = torch.device("cpu")
    budget = training.micro_batch_tokens
    model.train()
    began = time.perf_counter()
    if method == "sft":
        examples = Examples([e for (e,) in made], pad_id, device)
        batch_of = micro_batches(examples, training, seed=0)
        objective = supervised
    elif method == "kto":
        rows = [RatedExample(e, label) for (e, _), label in zip(made, labels, strict=True)]
        rated = Rated(rows, pad_id, device, [other for _, other in made])
        known = over_all(rated.with_mismatched(), lambda b: sequence_logprobs(model, b),
                         budget_tokens=budget, columns=2)
        rated = Rated(rows, pad_id, device, rated.mismatched, known)
        batch_of = rated_batches(model, rated, training, mismatched_kl, seed=0)
        weights = {"desirable_weight": 1.0, "undesirable_weight": 1.0}
        objective = unpaired(lambda *a: kto(*a, beta=BETA, **weights), beta=BETA)
    else:
        pairs = [Pair(*sides) for sides in made]
        measure = sequence_scores if method == "reward_model" else sequence_logprobs
        collator = Pairs(pairs, pad_id, device, sharing_pays(model, pairs, pad_id, measure))
        if method == "dpo":
            known = over_all(collator, lambda b: sequence_logprobs(model, b.batch),
                             budget_tokens=budget, columns=2)
            collator = Pairs(pairs, pad_id, device, collator.shares_prompts, known)
            row = PREFERENCE_LOSSES["dpo"]
            objective = preference(
                lambda p: row.function(p, beta=BETA, label_smoothing=0.0),
                lambda p: implicit_rewards(row, p, beta=BETA),
            )
        else:
            objective = pairwise_reward(lambda *a: bradley_terry(*a, centering_coef=0.0))
        batch_of = micro_batches(collator, training, seed=0)
    engine = TorchEngine(model, learning_rate=LEARNING_RATE, schedule=lambda _: 1.0)
    steps = range(len(made) // training.batch_size)
    losses = [r.loss for r in train_steps(engine, objective, (batch_of(s) for s in steps))]
    return Timed(time.perf_counter() - began, losses)


if __name__ == "__main__":
    main()
