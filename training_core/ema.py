"""An exponential moving average of a model's weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from training_core.errors import IntegrityError


class WeightAverage:
    """The average of the trained weights over optimizer steps, in single precision at least.

        average <- decay * average + (1 - decay) * weight

    It starts with the present weights of the model.

    Args:
        model: model whose trained parameters are averaged.
        decay: in [0, 1); with 0 the average equals the weights.

    Source:
        Polyak & Juditsky 1992; for RLHF, OpenRLHF's `--enable_ema` (decay 0.992).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = decay
        self._average = {name: _wide(p).clone() for name, p in _trained(model)}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Update the average with the weights of `model`; call once per optimizer step."""
        for name, parameter in _trained(model):
            self._average[name].lerp_(_wide(parameter), 1.0 - self._decay)

    @torch.no_grad()
    def write_to(self, model: nn.Module) -> None:
        """Replace the trained weights of `model` by the average."""
        for name, parameter in _trained(model):
            parameter.copy_(self._average[name])

    @contextmanager
    def in_place_of(self, model: nn.Module) -> Iterator[None]:
        """Put the average into `model` while the body runs; restore its own weights afterwards."""
        own = {name: parameter.detach().clone() for name, parameter in _trained(model)}
        self.write_to(model)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, parameter in _trained(model):
                    parameter.copy_(own[name])

    def state_dict(self) -> dict[str, Tensor]:
        """Return the average by parameter name."""
        return dict(self._average)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            IntegrityError: if the names are not those of the model.
        """
        if state.keys() != self._average.keys():
            odd = sorted(state.keys() ^ self._average.keys())[:3]
            raise IntegrityError(
                f"the saved weight average belongs to another model: only one of them has {odd}"
            )
        for name, average in self._average.items():
            average.copy_(state[name])


def _trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def _wide(parameter: Tensor) -> Tensor:
    return parameter.detach().to(torch.promote_types(parameter.dtype, torch.float32))
