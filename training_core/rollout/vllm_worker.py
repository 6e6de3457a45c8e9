"""What vLLM's workers run for us: take over the trainer's weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from training_core.rollout.engine import fingerprint


class WeightReceiver:
    """Mixed into vLLM's worker by `worker_extension_cls`."""

    model_runner: Any

    def receive_weights(self, weights: list[tuple[str, Tensor]]) -> str:
        """Load `weights` and return the fingerprint of what was loaded.

        `reload_weights` and not `model.load_weights`: the CPU build repacks linear layers when it loads them, and
        only a reload starts from unpacked ones.
        """
        self.model_runner.reload_weights(weights_iterator=iter(weights))
        return fingerprint(weights)
