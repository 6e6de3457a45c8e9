"""What the Prefect server does by itself when a run crashes.

The two automations together resume a run without a person. The first marks runs as crashed whose
worker or machine was lost. The second starts crashed runs again. The second has no limit: a flow
looks at `prefect.runtime.flow_run.run_count` and fails once it was started too often, since a
failed run is not started again.

The server handles a run's events in order, and a restarted server does not know which ones were
handled. A server of `ratchet up` waits `flows.local_services.prefect_server.ORDER_SECONDS` for an
earlier event; another server waits 15 minutes, and so long a run may then stay Crashed that began
less than five minutes before the restart. All others are resumed after 10 seconds.
"""

from __future__ import annotations

from datetime import timedelta

from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification

from flows.local_services.lost_runs import AUTO_RESUME_TAG, RESUMES

# Three beats of PREFECT_FLOWS_HEARTBEAT_FREQUENCY; with fewer, one late beat would end a live run.
_SILENCE = timedelta(seconds=90)

# The shortest that Prefect allows.
_SETTLING = timedelta(seconds=10)
_SIGNS_OF_LIFE = ("Scheduled", "AwaitingRetry", "Pending", "Running")


def lost_runs_crash() -> AutomationCore:
    """Mark a run as crashed that has sent no event for 90 seconds after a heartbeat.

    Every event of the run counts, so that a run that ended in a state with another name
    (`Reused`, `Skipped`) is not marked.
    """
    return AutomationCore(
        name="ratchet: lost runs crash",
        description="Marks a run Crashed after 90 s without a heartbeat. Kept by `ratchet deploy`.",
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
    """Start a crashed run with the tag `auto-resume` again 10 s later, like Retry in the UI.

    Not at once: a worker reports a dead process up to some seconds after the server knows, and that
    report would turn the new `AwaitingRetry` into `Crashed` for good. So this fires when the run
    has sent no other event than crashes for 10 seconds.
    """
    return AutomationCore(
        name=RESUMES,
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
