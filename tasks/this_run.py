"""The flow run that this process does, as the registry needs it."""

from __future__ import annotations

import time

from prefect.context import FlowRunContext
from prefect.runtime import flow_run

from stages.safe_text import redacted
from tasks.registry import FlowRun


def this_flow_run() -> FlowRun:
    """Return the flow run of the flow or task that calls this."""
    context = FlowRunContext.get()
    started = context.start_time.timestamp() if context else time.time()
    id_, flow = str(flow_run.id), str(flow_run.flow_name or "flow")
    return FlowRun(id_, flow, redacted(str(flow_run.name or flow)), started)
