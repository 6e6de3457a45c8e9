"""Data, models and settings of the runs that show that training works.

Shared by `benchmarks/learning.py`, which does all runs, and `tests/learning`, which does some.
The settings of the reward models were chosen by cross-validation over training pairs.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

Row = Mapping[str, Any]
HELDOUT_SHARE = 0.2
WORDS = r"<user>|<assistant>|</?s>|\p{L}+|\.\p{N}+|\p{N}+|[^\s\p{L}\p{N}]+|\n"
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<user>", "<assistant>"]


@dataclass(frozen=True)
class Task:
    """Training rows and held-out rows of a dataset.

    Attributes:
        name: name of the file.
        train: rows for training and for the choice of settings.
        heldout: rows for the evaluation; none of their questions or prompts is in `train`.
    """

    name: str
    train: Sequence[Row]
    heldout: Sequence[Row]

    def write(self, folder: Path, *, limit: int | None = None) -> tuple[dict[str, Any], ...]:
        """Write both parts and return them as the `data` of a config."""
        return (
            write_rows(folder / f"{self.name}.train.jsonl", self.train[:limit]),
            write_rows(folder / f"{self.name}.heldout.jsonl", self.heldout),
        )


def read_rows(path: Path) -> list[Row]:
    """Read gzip'd JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def write_rows(path: Path, rows: Iterable[Row]) -> dict[str, Any]:
    """Write JSON lines and return them as the `data` of a config."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {"name": "files", "path": str(path)}


def split_by(rows: Sequence[Row], key: Callable[[Row], Any], *, name: str) -> Task:
    """Hold out a fifth of the groups, chosen with a fixed seed; rows with one key are a group."""
    groups = sorted({json.dumps(key(row)) for row in rows})
    random.Random(0).shuffle(groups)
    heldout = set(groups[: round(HELDOUT_SHARE * len(groups))])
    parts: tuple[list[Row], list[Row]] = ([], [])
    for row in rows:
        parts[json.dumps(key(row)) in heldout].append(row)
    return Task(name, *parts)


def polite(data: Path) -> Task:
    """Pairs of a polite and an impolite answer, written by a model."""
    return _published(data, "rasbt_polite_impolite")


def harmless(data: Path) -> Task:
    """HH-RLHF harmless-base; people chose the better responses."""
    return _published(data, "hh_rlhf_harmless_base")


def arithmetic(data: Path) -> Task:
    """Pairs of a correct and a wrong GSM8K solution; no question is in both parts."""
    rows = read_rows(data / "preference/gsm8k_model_solutions_pairs.jsonl.gz")
    plain = [{k: row[k] for k in ("prompt", "chosen", "rejected", "question_id")} for row in rows]
    return split_by(plain, lambda row: row["question_id"], name="gsm8k_model_solutions_pairs")


def mistakes(data: Path, *tasks: str) -> Task:
    """Solutions whose first wrong step is marked; no prompt is in both parts."""
    rows = read_rows(data / "process/bigbench_mistake.jsonl.gz")
    chosen = [row for row in rows if not tasks or row["task"] in tasks]
    plain = [{k: row[k] for k in ("prompt", "steps", "step_labels", "task")} for row in chosen]
    return split_by(plain, lambda row: row["prompt"], name="bigbench_mistake")


def instructions(data: Path) -> Task:
    """Questions and answers from a book."""
    folder = data / "instruction"
    train, test = (folder / f"rasbt_instructions.{part}.jsonl.gz" for part in ("train", "test"))
    return Task("rasbt_instructions", read_rows(train), read_rows(test))


def _published(data: Path, name: str) -> Task:
    parts = (data / f"preference/{name}.{part}.jsonl.gz" for part in ("train", "test"))
    return Task(name, *(read_rows(path) for path in parts))


def texts_of(rows: Iterable[Row]) -> list[str]:
    """Return all texts in rows of any kind."""
    messages = ("prompt", "chosen", "rejected", "messages")
    said = [m["content"] for row in rows for name in messages for m in row.get(name, ())]
    return said + [step for row in rows for step in row.get("steps", ())]


def training(epochs: float, learning_rate: float, **settings: Any) -> dict[str, Any]:
    """Return the `training` of a config."""
    optimizer = {"learning_rate": learning_rate, **settings.pop("optimizer", {})}
    return {
        "epochs": epochs,
        "batch_size": 16,
        "max_tokens": 512,
        "unknown_limit": 1.0,  # the model of stories lacks signs, the scratch models rare words
        "optimizer": optimizer,
    } | settings


@dataclass(frozen=True)
class RewardRecipe:
    """A reward model from scratch.

    Attributes:
        task: data folder -> the pairs.
        layers: layers of a Llama of width 64 with random weights.
        settings: `training` of the reward model.
        vocabulary_size: tokens of its tokenizer; rarer words become the unknown token. Of all
            settings, a small vocabulary prevents overfitting best.
        response_only: whether the prompt is left out, so that the model sees only the responses.
    """

    task: Callable[[Path], Task]
    layers: int
    settings: Mapping[str, Any]
    vocabulary_size: int = 4000
    response_only: bool = False

    def rows(self, data: Path) -> Task:
        """The pairs as the model sees them."""
        found = self.task(data)
        if not self.response_only:
            return found
        no_prompt = [{"role": "user", "content": "?"}]
        cut = ([{**row, "prompt": no_prompt} for row in part] for part in parts_of(found))
        return Task(found.name, *cut)


def parts_of(task: Task) -> tuple[Sequence[Row], Sequence[Row]]:
    """Training and held-out rows."""
    return task.train, task.heldout


STEADY: Mapping[str, Any] = {"optimizer": {"weight_decay": 0.1}, "ema_decay": 0.98}
REWARD_RECIPES = {
    "polite": RewardRecipe(polite, 1, training(5, 1e-3, **STEADY)),
    "harmless": RewardRecipe(harmless, 1, training(3, 1e-3, **STEADY), 500, response_only=True),
    "arithmetic": RewardRecipe(arithmetic, 1, training(3, 1e-3, **STEADY), 300, response_only=True),
}
PROCESS_TASKS = ("tracking_shuffled_objects", "multistep_arithmetic", "logical_deduction")
STORY_TEMPLATE = "User: {}\nAssistant: "
PREFERENCE_RATES = {"dpo": 3e-4, "ipo": 3e-4, "simpo": 3e-4, "orpo": 1e-3, "kto": 3e-4}
LOSS_SETTINGS = {"orpo": {"beta": 1.0}}
"""With ORPO's default beta of 0.1, nearly all of the gradient comes from the NLL term."""
PER_TOKEN = ("ipo", "simpo", "orpo")
"""Losses that use log-probabilities per token."""


def both_sides(rows: Iterable[Row]) -> list[Row]:
    """Return the chosen and rejected responses as demonstrations."""
    return [{"messages": r["prompt"] + r[side]} for r in rows for side in ("chosen", "rejected")]


def chosen_side(rows: Iterable[Row]) -> list[Row]:
    """Return the chosen responses as demonstrations."""
    return [{"messages": row["prompt"] + row["chosen"]} for row in rows]


def whole_solutions(rows: Iterable[Row]) -> list[Row]:
    """Return the solutions, right or wrong, as demonstrations."""
    return [{"prompt": r["prompt"], "response": "\n".join(r["steps"])} for r in rows]


def story_model(data: Path) -> dict[str, Any]:
    """Return the pretrained model of 656K parameters as `base`."""
    return {"name": "local", "path": str(data / "models/TinyStories-656K")}


def make_scratch_base(
    rows: Sequence[Row],
    directory: Path,
    *,
    hidden_size: int,
    layers: int,
    vocabulary_size: int = 4000,
) -> dict[str, Any]:
    """Write a Llama with random weights and a tokenizer of the rows' words; return it as `base`.

    Words are in lower case: sequences of letters, of digits (also after a point, e.g. `.0`) or of
    punctuation, as in a bag of words.
    """
    words = Tokenizer(models.WordLevel(unk_token="<unk>"))
    words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), behavior="removed", invert=True)
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocabulary_size, min_frequency=2, special_tokens=SPECIAL, show_progress=False
    )
    words.train_from_iterator(texts_of(rows), trainer)
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL, strict=False))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **names)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=hidden_size,
                intermediate_size=2 * hidden_size,
                num_hidden_layers=layers,
                num_attention_heads=2,
                num_key_value_heads=2,
                max_position_embeddings=1024,
                tie_word_embeddings=True,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
            )
        )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return {"name": "local", "path": str(directory)}
