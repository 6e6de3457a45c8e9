"""Log-probabilities under a frozen model, computed once and kept by content.

The key is made of what they depend on: the weights, the tokens and the precision. So another
learning rate, another loss or a resumed attempt finds them again.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from stages.batches.micro_batches import Collator, over_all
from stages.configs.model_config import ModelConfig
from stages.contract import Context, Inputs
from stages.files import replacing
from training_core.distributed import all_gather_object
from training_core.models import hub
from training_core.models.causal_lm import sequence_logprobs
from training_core.storage import writing
from training_core.types import Batch, Example

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Reference:
    """The frozen model that a policy is held near.

    Attributes:
        policy: as the stage starts with it.
        inputs: directories, with `policy` and `reference`.
        options: what the policy was loaded as.
        seed: of the stage.
        context: where kept results are, and what the inputs contain.
    """

    policy: Any
    inputs: Inputs
    options: ModelConfig
    seed: int
    context: Context

    @property
    def identity(self) -> str:
        """What names its weights and its precision."""
        directory = str(self.inputs["reference"])
        weights = self.context.input_digests.get("reference", directory)
        lora = self.options.lora
        bits = " 4 bits" if self._is_the_policy and lora and lora.load_in_4bit else ""
        return f"{weights} {self.options.dtype}{bits}"

    @property
    def _is_the_policy(self) -> bool:
        """Whether it is what the policy starts from, and the policy is an adapter on it."""
        same = self.inputs["policy"] == self.inputs["reference"]
        return self.options.lora is not None and same

    def opened(self) -> AbstractContextManager[Any]:
        """Give the model.

        Where the policy is an adapter on it, it is the policy with the adapter off, and no second
        model is loaded.
        """
        if self._is_the_policy:
            from training_core.models.adapters import (  # noqa: PLC0415 - imports peft: seconds
                adapter_disabled,
            )

            return adapter_disabled(self.policy)
        plain = self.options.untrained().load_options(seed=self.seed)
        model = hub.freeze(hub.load_policy(self.inputs["reference"], options=plain))
        return nullcontext(model.to(self.policy.device))

    def logprobs(
        self,
        collator: Collator[T],
        sequences: Sequence[Example],
        *,
        batch_of: Callable[[T], Batch],
        columns: int,
        budget_tokens: int,
    ) -> torch.Tensor:
        """Ask it about every sequence; see `reference_logprobs`."""
        return reference_logprobs(
            self.opened,
            collator,
            sequences,
            batch_of=batch_of,
            columns=columns,
            budget_tokens=budget_tokens,
            identity=self.identity,
            context=self.context,
        )


def reference_logprobs(
    opened: Callable[[], AbstractContextManager[Any]],
    collator: Collator[T],
    sequences: Sequence[Example],
    *,
    batch_of: Callable[[T], Batch],
    columns: int,
    budget_tokens: int,
    identity: str,
    context: Context,
) -> torch.Tensor:
    """Compute, or find, the summed log-probability of every sequence.

    Args:
        opened: gives the frozen model; only called where nothing is found.
        collator: the items.
        sequences: everything that the items are made of, in order; names the result.
        batch_of: micro-batch -> its `Batch`.
        columns: sequences per item.
        budget_tokens: of a micro-batch.
        identity: names weights and precision, as `sha256… float32`.
        context: where kept results are.

    Returns:
        [number of items, columns] float64 on the CPU.
    """
    path = None
    if context.cache_dir is not None:
        path = context.cache_dir / f"logprobs-{_digest(identity, sequences)}.safetensors"
        known = _read(path) if context.dist_info.is_first else None
        if (found := all_gather_object(known, context.dist_info)[0]) is not None:
            log.info("the reference's log-probabilities are known already: %s", path.name)
            return found
    with opened() as model:
        sums = over_all(
            collator,
            lambda batch: sequence_logprobs(model, batch_of(batch)),
            budget_tokens=budget_tokens,
            columns=columns,
            dist_info=context.dist_info,
        )
    if path is not None and context.dist_info.is_first:
        _write(path, sums)
    return sums


def _digest(identity: str, sequences: Sequence[Example]) -> str:
    digest = hashlib.sha256(identity.encode())
    for example in sequences:
        digest.update(torch.tensor([example.input_ids, example.loss_mask]).numpy().tobytes())
        digest.update(b"|")
    return digest.hexdigest()[:32]


def _read(path: Path) -> torch.Tensor | None:
    try:
        return load_file(path)["sums"]
    except FileNotFoundError:
        return None
    except (SafetensorError, KeyError, OSError) as error:
        log.warning("%s is damaged and is computed again: %s", path, error)
        return None


def _write(path: Path, sums: torch.Tensor) -> None:
    with writing(f"the reference's log-probabilities {path}"), replacing(path) as draft:
        save_file({"sums": sums.contiguous()}, draft)
