"""TRL's runs of `grpo.py`."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from transformers import PrinterCallback, TrainerCallback

from stages.configs.ppo_config import PpoConfig
from training_core.models import hub

try:
    import trl
    from datasets import Dataset, disable_progress_bars
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}; pip install ratchet-rlhf[trl]") from error


@dataclass(frozen=True)
class TrlGrpo:
    """GRPO with TRL.

    Attributes:
        policy: folder of the model.
        config: the same task for the stage `ppo`.
        texts: prompts, as many as all steps need.
        folder: for the trainer's files.
    """

    policy: Path
    config: PpoConfig
    texts: Sequence[str]
    folder: Path

    def run(self, accumulation: int) -> tuple[float, float]:
        """Train with so many micro-batches per step; return seconds per step and mean length."""
        disable_progress_bars()
        warnings.filterwarnings("ignore")
        lengths: list[float] = []

        def reward(
            completions: Sequence[str], completion_ids: Sequence[Sequence[int]], **_: Any
        ) -> list[float]:
            lengths.extend(map(len, completion_ids))
            return [text.count("e") / max(1, len(text)) for text in completions]

        config, watch = self.config, _Steps()
        size = config.prompts_per_step * config.group_size
        arguments = trl.GRPOConfig(
            output_dir=str(self.folder / "trl"),
            per_device_train_batch_size=size // accumulation,
            gradient_accumulation_steps=accumulation,
            num_generations=config.group_size,
            max_completion_length=config.rollouts.max_response_tokens,
            max_steps=config.steps,
            temperature=config.rollouts.temperature,
            beta=0.0,
            learning_rate=config.policy_optimizer.learning_rate,
            lr_scheduler_type="constant",
            adam_beta2=0.95,
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            dataloader_pin_memory=False,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = trl.GRPOTrainer(
            model=hub.load_policy(self.policy),
            reward_funcs=reward,
            args=arguments,
            train_dataset=Dataset.from_list([{"prompt": text} for text in self.texts]),
            processing_class=hub.load_tokenizer(self.policy),
            callbacks=[watch],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        return (watch.ends[-1] - watch.ends[0]) / (len(watch.ends) - 1), fmean(lengths[size:])


class _Steps(TrainerCallback):
    """Notes when each step ends."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.ends.append(time.monotonic())
