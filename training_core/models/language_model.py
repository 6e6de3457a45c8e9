"""The type of every model that is loaded, made or trained here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TypeAlias

from transformers import PreTrainedModel

if TYPE_CHECKING:
    import torch

    class LanguageModel(PreTrainedModel):
        """A transformers model whose `to` has a type, which a decorator of transformers hides."""

        def to(self, device: torch.device | str) -> Self:  # pyright: ignore
            """Move it."""
            ...
else:
    LanguageModel: TypeAlias = PreTrainedModel
