"""Rows as a person may have them, by method, and `ratchet new` with such a file."""

from __future__ import annotations

from typer.testing import CliRunner

from flows.cli.main import app
from stages.files import write_jsonl
from training_core.data import cafe

PAIR = cafe.rows("pairs", split="train", size=1, seed=1)[0]
ASKED, BETTER, WORSE = (PAIR[name][0]["content"] for name in ("prompt", "chosen", "rejected"))
CHAT = {"messages": [*PAIR["prompt"], *PAIR["chosen"]]}
PAIRS = {"prompt": ASKED, "chosen": BETTER, "rejected": WORSE, "source": "café"}
RATED = {"prompt": ASKED, "response": BETTER, "label": True}
SOLVED = {"prompt": ASKED, "completions": [BETTER, WORSE], "labels": [True, False]}
VERIFIABLE = {"question": ASKED, "answer": "2", "level": "easy"}
TEXT = {"text": BETTER, "url": "https://example.org"}
ROWS = {
    "sft": CHAT,
    "continued-pretraining": TEXT,
    "dpo": PAIRS,
    "orpo": PAIRS,
    "simpo": PAIRS,
    "kto": RATED,
    "grpo": VERIFIABLE,
    "ppo": PAIRS,
    "rejection-sampling": PAIRS,
    "iterative-dpo": PAIRS,
    "reward-model": PAIRS,
    "process-reward": SOLVED,
    "distillation": CHAT,
}
STEPS = {
    "sft": ["sft"],
    "continued-pretraining": ["sft"],
    "dpo": ["sft", "dpo"],
    "orpo": ["sft", "dpo"],
    "simpo": ["sft", "dpo"],
    "kto": ["sft", "kto"],
    "grpo": ["sft", "ppo"],
    "ppo": ["sft", "reward_model", "ppo"],
    "rejection-sampling": ["sft", "reward_model", "rejection_sampling", "rejection_sft"],
    "iterative-dpo": [
        "sft", "reward_model", "preference_pairs_1", "dpo_1", "preference_pairs_2", "dpo_2",
        "preference_pairs_3", "dpo_3",
    ],
    "reward-model": ["sft", "reward_model"],
    "process-reward": ["sft", "process_reward"],
    "distillation": ["sft", "teacher", "distillation"],
}  # fmt: skip


def ratchet(*arguments):
    return CliRunner().invoke(app, ["new", *map(str, arguments)])


def words(result):
    """The output without the line breaks of a narrow terminal."""
    return " ".join(result.output.split())


def rows_in(folder, row, *, times=40):
    path = folder / "rows.jsonl"
    write_jsonl(path, [row] * times)
    return path
