"""The coefficient of the KL penalty over the rounds."""

from __future__ import annotations

from stages.configs.ppo_config import PpoConfig
from stages.configs.ppo_options import AdaptiveKlConfig
from training_core.algorithms.kl import adapted_coef
from training_core.engine.protocol import StateDict


class KlControl:
    """Holds the KL coefficient; its state goes into checkpoints.

    Args:
        config: of the stage.

    Attributes:
        coef: coefficient of the next round.
    """

    def __init__(self, config: PpoConfig) -> None:
        self.coef = config.kl_coef
        self._config = config

    @property
    def in_reward(self) -> float:
        """Penalty per nat in the token rewards; 0 if the KL is part of the loss."""
        return self.coef if self._config.kl_in == "reward" else 0.0

    @property
    def in_loss(self) -> float:
        """Weight of the KL in the policy's loss; 0 if the KL is part of the reward."""
        return self.coef if self._config.kl_in == "loss" else 0.0

    def update(self, kl: float, responses: int) -> None:
        """Adapt an adaptive coefficient to the mean KL of a round, in nats per response."""
        control = self._config.kl_control
        if isinstance(control, AdaptiveKlConfig):
            self.coef = adapted_coef(
                self.coef, kl, target=control.target, horizon=control.horizon, responses=responses
            )

    def state_dict(self) -> StateDict:
        """Return the coefficient."""
        return {"coef": self.coef}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore what `state_dict` returned."""
        self.coef = state["coef"]
