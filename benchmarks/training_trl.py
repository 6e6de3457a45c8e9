"""TRL's runs of `training.py`; only this file uses TRL's trainers."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from transformers import PrinterCallback, TrainerCallback

from training_core.types import Example

os.environ.setdefault("TQDM_DISABLE", "1")
try:
    import trl
    from datasets import Dataset, disable_progress_bars
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}; pip install ratchet-rlhf[trl]") from error

PREFIXES = {"sft": "SFT", "reward_model": "Reward", "dpo": "DPO", "kto": "KTO"}
SIDES = ("chosen_ids", "rejected_ids")


@dataclass(frozen=True)
class Variant:
    """A setting of TRL that has no effect on the result.

    Attributes:
        accumulation: number of micro-batches of equal size in a batch.
        reference_first: whether the reference's log-probabilities are computed before training;
            None without a reference.
    """

    accumulation: int
    reference_first: bool | None = None

    def __str__(self) -> str:
        """Description for the table."""
        cut = f"{self.accumulation} micro-batch" + ("es" if self.accumulation > 1 else "")
        first = {None: "", True: ", reference first", False: ", reference in each step"}
        return cut + first[self.reference_first]


@dataclass(frozen=True)
class Task:
    """A training task for TRL.

    Attributes:
        method: a key of `PREFIXES`.
        texts: rows in TRL's columns, in the order of training.
        model: model at the start; each run trains a copy.
        tokenizer: tokenizer of the model.
        batch_size: rows per optimizer step.
        max_tokens: limit of a sequence, larger than the longest row.
        learning_rate: constant learning rate.
        clock: returns the time in seconds.
    """

    method: str
    texts: Sequence[dict[str, Any]]
    model: Any
    tokenizer: Any
    batch_size: int
    max_tokens: int
    learning_rate: float
    clock: Callable[[], float]

    def variants(self) -> list[Variant]:
        """Return the settings to try; KTO's baseline would change with several micro-batches."""
        cuts = [1] if self.method == "kto" else [n for n in (1, 4, 8) if self.batch_size % n == 0]
        firsts = (True, False) if self.method in ("dpo", "kto") else (None,)
        return [Variant(cut, first) for cut in cuts for first in firsts]

    def items(self) -> list[tuple[Example, ...]]:
        """Return TRL's tokens of each row; for KTO the second sequence has a mismatched response.

        Raises:
            SystemExit: if TRL drops a row.
        """
        rows = list(self.trainer(self.variants()[-1]).train_dataset)
        if len(rows) != len(self.texts):
            raise SystemExit(f"TRL kept {len(rows)} of {len(self.texts)} rows; raise --max-tokens")
        if self.method == "reward_model":  # its rows do not contain the end of the prompt
            prompts = [self.tokenizer(text["prompt"])["input_ids"] for text in self.texts]
            return [_pair(row, prompt) for row, prompt in zip(rows, prompts, strict=True)]
        return [_item(self.method, row) for row in rows]

    def run(self, variant: Variant) -> tuple[float, list[float]]:
        """Train; return the seconds of steps and reference, and the loss of each step."""
        trainer = self.trainer(variant)
        watch = _Watch(self.clock)
        trainer.add_callback(watch)
        losses: list[float] = []
        inner = trainer.training_step

        def recorded(*args: Any, **kwargs: Any) -> Any:
            loss = inner(*args, **kwargs)
            losses.append(float(loss))
            return loss

        trainer.training_step = recorded
        trainer.train()
        size = variant.accumulation
        steps = [sum(losses[i : i + size]) for i in range(0, len(losses), size)]
        return watch.seconds + trainer.reference_seconds, steps

    def trainer(self, variant: Variant) -> Any:
        """Build the trainer, which also tokenises."""
        disable_progress_bars()
        warnings.filterwarnings("ignore")
        model, own, references = deepcopy(self.model), {}, {}
        if variant.reference_first is not None:
            own["precompute_ref_log_probs"] = variant.reference_first
        if variant.reference_first is False:
            references["ref_model"] = deepcopy(self.model)
        arguments = getattr(trl, f"{PREFIXES[self.method]}Config")(
            output_dir=tempfile.gettempdir(),
            per_device_train_batch_size=self.batch_size // variant.accumulation,
            gradient_accumulation_steps=variant.accumulation,
            train_sampling_strategy="sequential",
            max_length=self.max_tokens,
            num_train_epochs=1,
            learning_rate=self.learning_rate,
            lr_scheduler_type="constant",
            adam_beta2=0.95,
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            dataloader_pin_memory=False,
            save_strategy="no",
            logging_strategy="no",
            logging_nan_inf_filter=False,
            report_to="none",
            disable_tqdm=True,
            **own,
        )
        trainer = _watched(getattr(trl, f"{PREFIXES[self.method]}Trainer"), self.clock)(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_list(list(self.texts)),
            processing_class=self.tokenizer,
            **references,
        )
        trainer.remove_callback(PrinterCallback)
        return trainer


class _Watch(TrainerCallback):
    """Measures the time from the start of the first step to the end of the last one."""

    began = seconds = 0.0

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.began = self.clock()

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds = self.clock() - self.began


def _watched(trainer: Any, clock: Callable[[], float]) -> Any:
    class Watched(trainer):
        """Measures the time of the reference's log-probabilities, if computed before training."""

        reference_seconds = 0.0

        def _precompute_ref_logps(self, *args: Any, **kwargs: Any) -> Any:
            began = clock()
            dataset = super()._precompute_ref_logps(*args, **kwargs)
            self.reference_seconds = clock() - began
            return dataset

    return Watched


def _item(method: str, row: dict[str, Any]) -> tuple[Example, ...]:
    if method == "sft":
        mask = tuple(int(label != -100) for label in row["labels"])
        return (Example(tuple(row["input_ids"]), mask),)
    columns = ("completion_ids", "KL_completion_ids") if method == "kto" else SIDES
    return tuple(_example(row["prompt_ids"], row[column]) for column in columns)


def _pair(row: dict[str, Any], prompt: Sequence[int]) -> tuple[Example, ...]:
    size = 0  # number of prompt tokens that both sides begin with
    for ids in zip(prompt, *(row[side] for side in SIDES), strict=False):
        if len(set(ids)) > 1:
            break
        size += 1
    return tuple(_example(prompt[:size], row[side][size:]) for side in SIDES)


def _example(prompt: Sequence[int], response: Sequence[int]) -> Example:
    return Example((*prompt, *response), (0,) * len(prompt) + (1,) * len(response))
