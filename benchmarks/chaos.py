"""The tiny lifecycle, while processes are killed at random until it completes.

    python -m benchmarks chaos [--seed 0] [--every 12] [--kills 0]

Starts services of its own and makes a shortened tiny lifecycle once undisturbed. Then it makes
every step anew, and about every 12 s a random process gets SIGKILL: a service, one of Ray's own
processes, a flow, a stage, its rollout engine, or all of them at once (loss of power, followed by
`ratchet up`). Nothing else is done for it. Prints what was killed and when it was back, the work
that was done twice, and the digests of both runs. Fails if a digest differs, if the work done twice
per kill is more than a checkpoint's interval, or if a process, job or mark is left.
"""

from __future__ import annotations

import random
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks.disturbed import SERVICES, STEPS, Machine, redone, services, wait_for

WEIGHTS = {
    "stage": 6,
    "flow": 2,
    "engine": 2,
    "ray": 1,
    "gcs_server": 1,
    "raylet": 1,
    "prefect": 2,
    "mlflow": 2,
    "worker": 2,
    "everything": 1,
}
"""How often each role is chosen, relative to the others."""
MOST_OF_A_SERVICE = 6
"""The supervisor gives a service up that ends more than ten times within ten minutes."""
LIMIT_SECONDS = 3600.0
STUCK_SECONDS = 600.0


def run(arguments: Namespace) -> None:
    """Disturb a lifecycle, and print what came of it."""
    with tempfile.TemporaryDirectory(prefix="ratchet-", dir="/tmp") as folder:
        with services(Path(folder, "h")) as machine:
            began = time.monotonic()
            peaceful = make(machine)
            seconds = time.monotonic() - began
            print(f"undisturbed: {seconds:.0f} s")
            disturb(machine, peaceful, arguments)
        if left := machine.processes():
            raise SystemExit(f"`ratchet down` has left {left}")


def make(machine: Machine) -> dict[str, str]:
    """Make the lifecycle undisturbed; return the digests of its steps."""
    run_id = machine.start()
    wait_for(lambda: has_ended(machine, run_id), LIMIT_SECONDS, "the undisturbed run")
    return machine.digests_of(run_id)


def disturb(machine: Machine, peaceful: dict[str, str], arguments: Namespace) -> None:
    """Make every step anew, with kills, and compare."""
    chance = random.Random(arguments.seed)
    known = {attempt.directory for attempt in machine.attempts()}
    began, killed = time.monotonic(), Counter[str]()
    run_id = machine.start(force=STEPS)
    while not has_ended(machine, run_id):
        pause(machine, run_id, arguments.every * chance.uniform(0.5, 1.5))
        if arguments.kills and sum(killed.values()) >= arguments.kills:
            continue
        if role := choose(machine, chance, killed):
            killed[role] += 1
            at = time.monotonic() - began
            print(f"{at:5.0f} s: {role}{back_after(machine, role)}", flush=True)
        if time.monotonic() - began > LIMIT_SECONDS:
            raise SystemExit(f"not complete after {LIMIT_SECONDS:.0f} s: {machine.home}")
    seconds = time.monotonic() - began
    new = [each for each in machine.attempts() if each.directory not in known]
    kills = ", ".join(f"{role} {number}" for role, number in killed.most_common())
    print(f"\ndisturbed: {seconds:.0f} s, {sum(killed.values())} kills survived ({kills})")
    print(
        "\n| attempt that was killed | steps done twice | interval | seconds |\n|---|---|---|---|"
    )
    for row in redone(new):
        print(f"| {row.job} | {row.steps} | {row.interval or '-'} | {row.seconds:.1f} |")
        if row.interval and row.steps > row.interval:
            raise SystemExit(f"{row.job} did {row.steps} steps again, more than {row.interval}")
    total = redone(new)
    print(
        f"\nwork done twice: {sum(row.steps for row in total)} steps, "
        f"{sum(row.seconds for row in total):.0f} s"
    )
    compare(peaceful, machine.digests_of(run_id))
    require_nothing_left(machine)


def has_ended(machine: Machine, run_id: str) -> bool:
    """Whether the run has completed.

    Raises:
        SystemExit: if it has failed, or was cancelled.
    """
    found = machine.state_of(run_id)
    state = found["state"] if found else None
    if state and state["type"] in ("FAILED", "CANCELLED"):
        raise SystemExit(f"the run is {state['name']}: {state['message']}")
    return bool(state and state["type"] == "COMPLETED")


def pause(machine: Machine, run_id: str, seconds: float) -> None:
    """Wait, but no longer than the run."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not has_ended(machine, run_id):
        time.sleep(0.3)


def choose(machine: Machine, chance: random.Random, killed: Counter[str]) -> str | None:
    """Kill a role that has a process now; return which."""
    roles = [
        role
        for role in WEIGHTS
        if killed[role] < MOST_OF_A_SERVICE or role in ("stage", "engine", "flow")
    ]
    while roles:
        (role,) = chance.choices(roles, [WEIGHTS[each] for each in roles])
        if role == "everything":
            machine.lose_power()
            return role
        if machine.kill(role):
            return role
        roles.remove(role)
    return None


def back_after(machine: Machine, role: str) -> str:
    """Wait until a service, or all, is back; return the time in words."""
    began = time.monotonic()
    if role == "everything":
        machine.ratchet("up")
        return f", all services are back after {time.monotonic() - began:.1f} s (`ratchet up`)"
    service = {"gcs_server": "ray", "raylet": "ray"}.get(role, role)
    if service not in SERVICES:
        return ""
    before = machine.record(service).pid
    wait_for(lambda: _is_new(machine, service, before), STUCK_SECONDS, f"{service} is back")
    return f", a new one after {time.monotonic() - began:.1f} s"


def _is_new(machine: Machine, service: str, before: int | None) -> bool:
    return machine.record(service).pid != before and bool(machine.role(service))


def compare(peaceful: dict[str, str], disturbed: dict[str, str]) -> None:
    """Print both digests of the final policy.

    Raises:
        SystemExit: if the digest of any step differs.
    """
    print(f"final policy: {disturbed.get('ppo', '')[:16]}, undisturbed {peaceful['ppo'][:16]}")
    different = [step for step in STEPS if disturbed.get(step) != peaceful[step]]
    if different:
        raise SystemExit(f"the results of {', '.join(different)} differ from the undisturbed ones")
    print(f"all {len(STEPS)} results equal the undisturbed ones")


def require_nothing_left(machine: Machine) -> None:
    """Check that nothing is left that should have gone.

    Raises:
        SystemExit: naming what is left, after a minute.
    """
    left: dict[str, Callable[[], object]] = {
        "jobs": machine.live_jobs,
        "marks of waiting runs": machine.waiters,
        "stage processes": lambda: machine.role("stage"),
        "flow processes": lambda: machine.role("flow"),
        "processes of services that were killed": machine.remains,
    }
    for name, find in left.items():
        try:
            wait_for(lambda find=find: not find(), 60, name)
        except TimeoutError:
            raise SystemExit(f"left: {name}: {find()}") from None
