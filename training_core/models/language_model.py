"""The type of every model that is loaded, made or trained here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TypeAlias

from transformers import PreTrainedModel

if TYPE_CHECKING:
    import torch

    class LanguageModel(PreTrainedModel):
        """A transformers model with a typed `to`; a decorator of transformers hides its type."""

        def to(self, device: torch.device | str) -> Self:  # pyright: ignore
            """Move the model to `device`."""
            ...
else:
    LanguageModel: TypeAlias = PreTrainedModel
