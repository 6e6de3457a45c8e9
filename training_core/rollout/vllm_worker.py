"""What vLLM's workers run for us: take over the trainer's weights."""

from __future__ import annotations

import logging
from typing import Any

from torch import Tensor

from training_core.rollout.engine import fingerprint

# Says at every sync that rotary embeddings have no weights to load.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)


class WeightReceiver:
    """Mixed into vLLM's worker by `worker_extension_cls`."""

    model_runner: Any

    def receive_weights(self, weights: list[tuple[str, Tensor]]) -> str:
        """Load `weights` and return the fingerprint of what was loaded.

        `reload_weights` and not `model.load_weights`: the CPU build repacks linear layers when it
        loads them, and only a reload starts from unpacked ones.
        """
        self.model_runner.reload_weights(weights_iterator=iter(weights))
        self._tie_head()
        return fingerprint(weights)

    def _tie_head(self) -> None:
        """Give a tied output head the new embedding.

        A reload skips tied heads, and on a CPU the head's matrix product uses a repacked copy,
        which would stay that of the first weights for ever (vLLM 0.32; seen as a log-probability
        gap that grows with training).
        """
        model = self.model_runner.get_model()
        if not getattr(model.config, "tie_word_embeddings", False):
            return
        head = model.lm_head.tie_weights(model.model.embed_tokens)
        head.quant_method.process_weights_after_loading(head)
