"""Memory of models that a stage only uses, at rest and at work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stages.configs.model_config import FrozenModelsConfig
from stages.sizes.stage_size import Roles
from training_core.sizes import activations
from training_core.sizes.model_use import ModelUse
from training_core.sizes.training_memory import Parts, resting

LAYERS_AT_ONCE = 2
"""Layers that FSDP has gathered: the one that computes, and the next one."""


def divided_by(frozen: FrozenModelsConfig, workers: int = 1) -> int | None:
    """Return how many workers divide the frozen models; one alone only moves them in parts."""
    return workers if frozen.shard and (workers > 1 or frozen.offload) else None


@dataclass(frozen=True)
class FrozenModels:
    """The frozen models of a stage.

    Attributes:
        uses: how each is held, by role.
        offload: whether they are in CPU memory except while they compute.
        divided_by: workers that divide the weights, and gather those of one layer at a time; None:
            each has all.
    """

    uses: Mapping[str, ModelUse]
    offload: bool = False
    divided_by: int | None = None

    def at_rest(self) -> Roles:
        """Return what they hold while none computes."""
        return self.at_work(tokens=0)

    def at_work(self, *roles: str, tokens: int) -> Roles:
        """Return what they hold while `roles` compute, one after the other.

        Args:
            roles: those whose weights are needed.
            tokens: of their micro-batch.
        """
        held = {role: self._held(use, at_work=role in roles) for role, use in self.uses.items()}
        if roles:
            running = activations.without_gradient(self.uses[roles[0]], tokens, tokens)
            held[roles[0]] += Parts(activations=running)
        return held

    def _held(self, use: ModelUse, *, at_work: bool) -> Parts:
        """Return what a model holds; offloaded weights stay in CPU memory, too, while it works.

        Divided ones are gathered: those beside the layers, one layer, and meanwhile the next.
        """
        parts, gathered = resting(use), Parts()
        if self.divided_by is not None:
            parts = replace(parts, weights=parts.weights / self.divided_by)
            elements = use.decoder.beside_layers(use.head) + LAYERS_AT_ONCE * use.decoder.layer
            gathered = Parts(weights=use.dtype_bytes * elements if at_work else 0.0)
        elif at_work:
            gathered = replace(parts, host=0.0)
        if not self.offload:
            return parts if self.divided_by is None else parts + gathered
        return replace(gathered, host=parts.weights)
