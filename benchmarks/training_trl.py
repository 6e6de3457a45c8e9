"""TRL's side of `training.py`; the only file that knows TRL's trainers."""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("TQDM_DISABLE", "1")


@dataclass(frozen=True)
class Variant:
    """A setting of TRL that does not change what is trained.

    Attributes:
        accumulation: micro-batches of equal size that a batch is cut into.
        reference_first: whether the reference's log-probabilities are computed before training.
    """

    accumulation: int
    reference_first: bool | None = None

    def __str__(self) -> str:
        """Words for the table."""
        when = {None: "", True: ", reference first", False: ", reference in each step"}
        return f"{self.accumulation} micro-batch{'es' * (self.accumulation > 1)}{when[self.reference_first]}"


def variants(method: str, batch_size: int) -> list[Variant]:
    """Return what may be chosen from; KTO's baseline is TRL's own only in one micro-batch."""
    cuts = [1] if method == "kto" else [n for n in (1, 4, 8) if batch_size % n == 0]
    firsts = (True, False) if method in ("dpo", "kto") else (None,)
    return [Variant(cut, first) for cut in cuts for first in firsts]


def tokenised(
    method: str, texts: Sequence[dict[str, Any]], model: Any, tokenizer: Any, training: Any
) -> list[dict[str, Any]]:
    """Let TRL tokenise the rows; for a reward model with the prompt kept apart.

    Raises:
        SystemExit: if TRL drops a row.
    """
    if method == "reward_model":
        rows = [_pair_ids(tokenizer, t) for t in texts]
    else:
        trainer = _trainer(method, texts, deepcopy(model), tokenizer, training, variants(method, 1)[-1], 0.0)
        rows = list(trainer.train_dataset)
    if len(rows) != len(texts):
        raise SystemExit(f"TRL kept {len(rows)} of {len(texts)} rows; lower --max-tokens")
    return rows


def run_trl(
    method: str,
    texts: Sequence[dict[str, Any]],
    model: Any,
    tokenizer: Any,
    training: Any,
    variant: Variant,
    learning_rate: float,
) -> tuple[float, list[float]]:
    """Train, and return seconds (of the steps and the reference) and the loss of each step."""
    trainer = _trainer(method, texts, model, tokenizer, training, variant, learning_rate)
    seconds = _Watch()
    trainer.add_callback(seconds.callback())
    losses: list[float] = []
    inner = trainer.training_step

    def recorded(*args: Any, **kwargs: Any) -> Any:
        loss = inner(*args, **kwargs)
        losses.append(float(loss))
        return loss

    trainer.training_step = recorded
    trainer.train()
    cut = variant.accumulation
    steps = [sum(losses[i : i + cut]) for i in range(0, len(losses), cut)]
    return seconds.total + getattr(trainer, "reference_seconds", 0.0), steps


class _Watch:
    """Time from the first step's beginning to the last one's end, without the trainer's set-up."""

    total = 0.0

    def callback(self) -> Any:
        from transformers import TrainerCallback

        watch = self

        class Callback(TrainerCallback):
            def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
                watch.began = time.perf_counter()

            def on_train_end(self, *args: Any, **kwargs: Any) -> None:
                watch.total = time.perf_counter() - watch.began

        return Callback()

    began = 0.0


def _trainer(
    method: str,
    texts: Sequence[dict[str, Any]],
    model: Any,
    tokenizer: Any,
    training: Any,
    variant: Variant,
    learning_rate: float,
) -> Any:
    try:
        import trl
        from datasets import Dataset, disable_progress_bars
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}; pip install ratchet-rlhf[trl]") from error

    disable_progress_bars()
    warnings.filterwarnings("ignore")
    prefix = {"sft": "SFT", "reward_model": "Reward", "dpo": "DPO", "kto": "KTO"}[method]
    config = getattr(trl, f"{prefix}Config")
    own: dict[str, Any] = {}
    if variant.reference_first is not None:
        own["precompute_ref_log_probs"] = variant.reference_first
    arguments = config(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=training.batch_size // variant.accumulation,
        gradient_accumulation_steps=variant.accumulation,
        train_sampling_strategy="sequential",
        max_length=training.max_tokens,
        num_train_epochs=1,
        learning_rate=learning_rate,
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=1.0,
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
    kind = _with_watched_reference(getattr(trl, f"{prefix}Trainer"))
    if variant.reference_first is False:
        own = {"ref_model": deepcopy(model)}
    else:
        own = {}
    return kind(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list(list(texts)),
        processing_class=tokenizer,
        **own,
    )


def _with_watched_reference(kind: Any) -> Any:
    class Watched(kind):
        """Counts the time of the reference's log-probabilities."""

        reference_seconds = 0.0

        def _precompute_ref_logps(self, *args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            dataset = super()._precompute_ref_logps(*args, **kwargs)
            self.reference_seconds = time.perf_counter() - began
            return dataset

    return Watched


def _pair_ids(tokenizer: Any, texts: dict[str, str]) -> dict[str, list[int]]:
    end = tokenizer.eos_token
    prompt = tokenizer(texts["prompt"])["input_ids"]
    sides = {}
    for side in ("chosen", "rejected"):
        ids = tokenizer(texts["prompt"] + texts[side] + end)["input_ids"]
        if ids[: len(prompt)] != prompt:
            raise SystemExit(f"the prompt's tokens change before the response {texts[side]!r}")
        sides[f"{side}_ids"] = ids[len(prompt) :]
    return {"prompt_ids": prompt, **sides}
