"""What the steps of a flow run may take at most."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from stages.configs.block import Block, operational
from training_core.names import checked_name


class LimitsConfig(Block):
    """Limits on time; None is no limit."""

    hours: float | None = operational(None, "Hours that the processes of stages run.", gt=0)
    gpu_hours: float | None = operational(None, "These hours times the reserved GPUs.", gt=0)


class BudgetConfig(LimitsConfig):
    """Limits of a flow run, and of its steps; finished stages that are reused take nothing.

    A step is stopped when its pace shows that it will exceed a limit, and not started if nothing is
    left. Its checkpoint stays: a new run with a higher budget goes on from it.
    """

    steps: dict[Annotated[str, AfterValidator(checked_name)], LimitsConfig] = operational(
        {}, "Limits of single steps, by their names."
    )
