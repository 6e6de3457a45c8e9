"""An extension of vLLM's workers that digests the weights of their layers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from vllm.distributed.weight_transfer import WeightTransferEngineFactory

from training_core.errors import MismatchError
from training_core.rollout.digest import Sums, content_sums
from training_core.rollout.vllm_engine import TRANSFER_BACKEND

# Each of vLLM's workers imports this module before it looks for the backend.
WeightTransferEngineFactory.register_engine(
    TRANSFER_BACKEND, "training_core.rollout.vllm_transfer", "BucketTransfer"
)

# This logger reports at every sync that rotary embeddings have no weights to load.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)


class WorkerExtension:
    """Extends vLLM's worker class, through the option `worker_extension_cls`."""

    model_runner: Any

    def complete_update(self, dtype: torch.dtype) -> list[Sums]:
        """Make all layers use the new weights, and digest those that they use.

        Returns:
            The sums of each weight; see `digest_of_parts`.
        """
        model = self.model_runner.get_model()
        repack_tied_layers(model)
        return sums_in_use(model, dtype)


def sums_in_use(model: nn.Module, dtype: torch.dtype) -> list[Sums]:
    """Return the `content_sums` of each weight, as the layers use it."""
    return [content_sums([weight], dtype) for weight in weights_in_use(model)]


def repack_tied_layers(model: nn.Module) -> None:
    """Pack the new weights of tied layers, e.g. of an embedding and the output head.

    A reload skips tied heads, and on a CPU the head's matrix product uses a packed copy, which
    would keep the first weights (vLLM 0.32). The symptom is a log-probability gap that grows with
    training.
    """
    sharing: dict[int, list[Any]] = {}
    for module in model.modules():
        if _weight_of(module).numel():
            sharing.setdefault(id(module.weight), []).append(module)
    for modules in sharing.values():
        for module in modules if len(modules) > 1 else ():
            module.quant_method.process_weights_after_loading(module)


def weights_in_use(model: nn.Module) -> Iterator[Tensor]:
    """Yield each weight once, as the layers use it.

    On a CPU a linear layer has only a packed copy. It is read by multiplying the layer with the
    identity matrix, which is exact. If a layer has the plain weight too, both must be equal.

    Raises:
        MismatchError: if they are not.
    """
    seen: set[int] = set()
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter
        if (packed := getattr(module, "cpu_linear", None)) is not None:
            plain = _weight_of(module)
            layer: Any = module
            # A part of a divided layer has fewer inputs than the layer.
            inputs = getattr(layer, "input_size_per_partition", layer.input_size)
            width = plain.shape[1] if plain.numel() else inputs
            unit = torch.eye(width, dtype=plain.dtype, device=plain.device)
            unpacked = packed(unit, plain, None).T
            if not plain.numel():
                yield unpacked
            elif not torch.equal(unpacked, plain):
                raise MismatchError(
                    f"the vllm engine's layer {name} computes with other weights than it received; "
                    "use rollouts.engine: transformers, and report this bug"
                )


def _weight_of(module: nn.Module) -> Tensor:
    """Return the parameter `weight` of a module; an empty tensor if it has none."""
    found = dict(module.named_parameters(recurse=False)).get("weight")
    return torch.empty(0) if found is None else found
