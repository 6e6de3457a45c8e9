"""What the Prefect server does by itself when a run dies.

Together the two resume a run unattended: one finds runs that died without a word, because their
worker or machine was lost; the other starts crashed runs again. The second has no limit of its
own: a flow must look at `prefect.runtime.flow_run.run_count` and fail once it has been started too
often, since a failed run is not started again.

The server handles a run's events in order, and forgets at a restart which it has handled. A run
that began less than five minutes before a restart of the server and crashed after it is therefore
resumed up to 15 minutes late; all others at once.
"""

from __future__ import annotations

from datetime import timedelta

from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification

AUTO_RESUME_TAG = "auto-resume"

# Three beats of PREFECT_FLOWS_HEARTBEAT_FREQUENCY; with fewer, one late beat would end a live run.
_SILENCE = timedelta(seconds=90)

# The shortest that Prefect allows.
_SETTLING = timedelta(seconds=10)
_SIGNS_OF_LIFE = ("Scheduled", "AwaitingRetry", "Pending", "Running")


def lost_runs_crash() -> AutomationCore:
    """A run that beats no more is dead, even if nobody lived to report it.

    Any event of the run counts as life, so that a run that ended in a state of its own name
    (`Reused`, `Skipped`) is not taken for dead.
    """
    return AutomationCore(
        name="ratchet: lost runs crash",
        description="Marks a run Crashed that beats no more for 90 s. Kept by `ratchet deploy`.",
        trigger=EventTrigger(
            posture=Posture.Proactive,
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.*"},
            match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
            for_each={"prefect.resource.id"},
            threshold=1,
            within=_SILENCE,
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                name="Crashed",
                message="No heartbeat for 90 seconds.",
                force=False,
            )
        ],
    )


def crashed_runs_resume() -> AutomationCore:
    """A run that has crashed, and wants it, is started again 10 s later, as by Retry in the UI.

    Not at once: a worker reports a dead process up to some seconds after the server knows, and that
    report would turn the new `AwaitingRetry` into `Crashed` for good. So this fires when nothing
    but crashes has been heard of the run for a while.
    """
    return AutomationCore(
        name="ratchet: crashed runs resume",
        description=f"Retries a crashed run tagged {AUTO_RESUME_TAG}. Kept by `ratchet deploy`.",
        trigger=EventTrigger(
            posture=Posture.Proactive,
            after={"prefect.flow-run.Crashed"},
            expect={f"prefect.flow-run.{state}" for state in _SIGNS_OF_LIFE},
            match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
            match_related=ResourceSpecification(
                {
                    "prefect.resource.role": "tag",
                    "prefect.resource.id": f"prefect.tag.{AUTO_RESUME_TAG}",
                }
            ),
            for_each={"prefect.resource.id"},
            threshold=1,
            within=_SETTLING,
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.SCHEDULED,
                name="AwaitingRetry",
                message="Resumed after a crash.",
                force=False,
            )
        ],
    )
