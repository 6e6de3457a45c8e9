"""An extension of vLLM's workers that receives the trainer's weights."""

from __future__ import annotations

import logging
from typing import Any

from torch import Tensor

from training_core.rollout.engine import fingerprint

# It logs at every sync that rotary embeddings have no weights to load.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)


class WeightReceiver:
    """Extends vLLM's worker class, by the option `worker_extension_cls`."""

    model_runner: Any

    def receive_weights(self, weights: list[tuple[str, Tensor]]) -> str:
        """Load `weights` and return the fingerprint of what was loaded.

        Uses `reload_weights`, not `model.load_weights`: the CPU build repacks linear layers after
        loading, and only a reload starts with layers that are not packed.
        """
        self.model_runner.reload_weights(weights_iterator=iter(weights))
        self._tie_head()
        return fingerprint(weights)

    def _tie_head(self) -> None:
        """Copy the new embedding to a tied output head.

        A reload skips tied heads, and on a CPU the head's matrix product uses a repacked copy,
        which would keep the first weights (vLLM 0.32). The symptom is a log-probability gap that
        grows with training.
        """
        model = self.model_runner.get_model()
        if not getattr(model.config, "tie_word_embeddings", False):
            return
        head = model.lm_head.tie_weights(model.model.embed_tokens)
        head.quant_method.process_weights_after_loading(head)
