"""Log-probabilities under a frozen model, computed once and cached.

The cache key is made of the weights, the tokens and the precision. So a run with another learning
rate or loss, or a resumed attempt, uses the same result.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from stages.batches.measured_items import over_all
from stages.batches.micro_batches import Collator
from stages.configs.model_config import ModelConfig
from stages.contract import Context, Inputs
from stages.files import replacing
from stages.training.trained_model import TrainedModel
from training_core.distributed import all_gather_object
from training_core.models import hub
from training_core.models.causal_lm import sequence_logprobs
from training_core.models.computing import Computing, WithoutAdapter
from training_core.models.language_model import LanguageModel
from training_core.models.offloading import FrozenWeights
from training_core.storage import writing
from training_core.types import Example, MicroBatch

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reference:
    """The frozen reference model of a policy.

    Attributes:
        opened: loads the model; called only if the cache has no result.
        identity: digest and precision of its weights, e.g. `sha256… float32`.
        context: has the folder of the cache.
    """

    opened: Callable[[], Computing]
    identity: str
    context: Context

    def logprobs(
        self,
        collator: Collator[MicroBatch],
        sequences: Sequence[Example],
        *,
        columns: int,
        budget_tokens: int,
    ) -> Tensor:
        """Compute the summed log-probability of every sequence, or read it from the cache.

        Args:
            collator: the items.
            sequences: all sequences of the items, in order; their digest is the cache key.
            columns: number of sequences per item.
            budget_tokens: padded tokens of a micro-batch, at most.

        Returns:
            [number of items, columns] float64 on the CPU.
        """
        path = self._path(sequences)
        dist_info = self.context.dist_info
        known = _read(path) if path is not None and dist_info.is_first else None
        if (found := all_gather_object(known, dist_info)[0]) is not None:
            log.info("the reference's log-probabilities are read from %s", path)
            return found
        sums = over_all(
            self.opened(),
            collator,
            _sequence_logprobs,
            budget_tokens=budget_tokens,
            columns=columns,
            dist_info=dist_info,
        )
        if path is not None and dist_info.is_first:
            _write(path, sums)
        return sums

    def _path(self, sequences: Sequence[Example]) -> Path | None:
        """Return the file of the result in the cache; None without a cache."""
        if self.context.cache_dir is None:
            return None
        return self.context.cache_dir / f"logprobs-{_digest(self.identity, sequences)}.safetensors"


def reference_of(
    policy: TrainedModel, inputs: Inputs, options: ModelConfig, seed: int
) -> Reference:
    """Return the input `reference` of a stage.

    If the policy is an adapter on the reference, the reference is the policy with the adapter
    disabled, and no second model is loaded. If the ranks divide the policy, they divide the
    reference, too.

    Args:
        policy: the policy at the start of the stage.
        inputs: directories, with `policy` and `reference`.
        options: options with which the policy was loaded.
        seed: seed of the stage.
    """
    directory, context = inputs["reference"], policy.context
    lora = options.lora if inputs["policy"] == directory else None

    def opened() -> Computing:
        if lora is not None:
            return WithoutAdapter(policy)
        plain = options.untrained().load_options(seed=seed)
        return frozen_beside(policy, hub.load_policy(directory, options=plain))

    weights = context.input_digests.get("reference", str(directory))
    bits = " 4 bits" if lora is not None and lora.load_in_4bit else ""
    return Reference(opened, f"{weights} {options.dtype}{bits}", context)


def frozen_beside(trained: TrainedModel, model: LanguageModel) -> FrozenWeights:
    """Freeze a model; the ranks divide it if they divide the trained model."""
    divided_by = trained.context.dist_info if trained.computes_together else None
    return FrozenWeights(hub.freeze(model), trained.device, divided_by=divided_by)


def _sequence_logprobs(model: nn.Module, micro_batch: MicroBatch) -> Tensor:
    return sequence_logprobs(model, micro_batch.batch)


def _digest(identity: str, sequences: Sequence[Example]) -> str:
    digest = hashlib.sha256(identity.encode())
    for example in sequences:
        digest.update(torch.tensor([example.input_ids, example.loss_mask]).numpy().tobytes())
        digest.update(b"|")
    return digest.hexdigest()[:32]


def _read(path: Path) -> Tensor | None:
    try:
        return load_file(path)["sums"]
    except FileNotFoundError:
        return None
    except (SafetensorError, KeyError, OSError) as error:
        log.warning("%s is damaged and is computed again: %s", path, error)
        return None


def _write(path: Path, sums: Tensor) -> None:
    with writing(f"the reference's log-probabilities {path}"), replacing(path) as draft:
        save_file({"sums": sums.contiguous()}, draft)
