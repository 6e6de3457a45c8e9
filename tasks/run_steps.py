"""The steps of a flow run, and where their stages are in the store.

    <store>/runs/<flow run>/<step>.json        one file per step that the run has begun

Prefect knows the states of the steps; these files add what `ratchet watch` and `ratchet logs` need.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from stages.attempt import Attempt
from stages.files import write_text
from stages.runtime.store import Store
from training_core.errors import IntegrityError
from training_core.names import require_name


class RunStep(BaseModel):
    """A step of a flow run.

    Attributes:
        step: its name in the flow.
        stage: the stage's name.
        key: the stage key.
        version: number in the registry, for a finished model.
        result: what it improved, in words; empty until it is finished.
        seconds: wall-clock time of the attempt that made it; 0 until it is finished.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    step: str
    stage: str
    key: str
    version: int | None = None
    result: str = ""
    seconds: float = 0.0


def note_step(store: Store, run_id: str, step: RunStep) -> None:
    """Write what is known of a step; a later call replaces it."""
    folder = store.root / "runs" / require_name("flow run", run_id)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{require_name('step', step.step)}.json", step.model_dump_json())


def steps_of_run(store: Store, run_id: str) -> dict[str, RunStep]:
    """Return the steps that a flow run has begun, by name; none for an unknown run.

    Raises:
        IntegrityError: if a file is not such a record.
    """
    folder = store.root / "runs" / require_name("flow run", run_id)
    found = [_read(path.read_text(), str(path)) for path in sorted(folder.glob("*.json"))]
    return {step.step: step for step in found}


def attempt_of_step(store: Store, step: RunStep) -> Attempt | None:
    """Return the attempt that made the result of a step; before that, the newest; or None."""
    attempts = store.attempts(step.stage, step.key)
    finished = store.first_of(step.stage, [step.key])
    return store.attempt_of(finished) if finished else next(iter(attempts), None)


def _read(text: str, where: str) -> RunStep:
    try:
        return RunStep.model_validate_json(text)
    except ValidationError as error:
        raise IntegrityError(
            f"{where}: expected the record of a step, found {text!r:.80}; delete it, a Retry of "
            "the run writes it again"
        ) from error
