"""The rows that the transformers engine samples, some of which end earlier than others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache


@dataclass
class SampledRows:
    """Rows that are being sampled.

    Attributes:
        ids: prompts, padded on the left, and responses so far [B, T].
        attention: 0 at the padding [B, T].
        cache: keys and values of all but the last token; None before the first.
    """

    ids: Tensor
    attention: Tensor
    cache: Cache | None

    def extend(self, new: Tensor, cache: Cache) -> None:
        """Add sampled tokens [B, S]."""
        self.ids = torch.cat([self.ids, new], dim=1)
        self.attention = torch.cat([self.attention, torch.ones_like(new)], dim=1)
        self.cache = cache

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only."""
        index = torch.tensor(rows, device=self.ids.device, dtype=torch.int64)
        self.ids, self.attention = self.ids[index], self.attention[index]
        if self.cache is not None and rows:
            self.cache.batch_select_indices(index)


def can_select_rows(model: Any) -> bool:
    """Whether rows of the model's cache can be copied and dropped; recurrent layers cannot."""
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    return all(hasattr(layer, "batch_select_indices") for layer in cache.layers)
