"""Per playbook, in virtual time: the seconds that Rekindle adds to what the platform needs, and its durable operations.

Added = from the moment the fault was known (the job ended, or the monitor spoke) to the new attempt's first step, less
what the platform and the run themselves need: the stop, the start, the first step.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise

from tests.recovery.scenarios import SCENARIOS
from tests.recovery.world import World, world

GOAL_S = 15
GOAL_OPERATIONS = 60
# What is not ours: waiting for the run to answer a request, and for capacity to appear.
WAITS = {"hang": "reply", "order": "save", "capacity": "capacity", "no_progress": "back-off"}


def first_step_at(w: World, name: str) -> datetime | None:
    """When the attempt had trained for one step."""
    run = w.cloud.simulated.runs.get(name)
    if run is None or run.job.started_at is None:
        return None
    return run.job.started_at + run.script.startup + run.script.step


def main() -> None:
    """Print one row per playbook."""
    print(f"{'playbook':12} {'added s':>8} {'of it waits for':>16} {'operations':>11} {'AWS calls':>10}  outcome")
    for name, prepare in SCENARIOS.items():
        with world() as w:
            prepare(w)
            w.cloud.wire.calls.clear()
            incident = w.recover()
            executions = w.cloud.engine.executions()
            operations = sum(len(execution.operations) - 1 for execution in executions)
            added = _added(w, incident.opened_at)
            shown = f"{added.total_seconds():8.1f}" if added is not None else f"{'-':>8}"
            note = WAITS.get(name, "")
            calls = sum(w.cloud.wire.calls.values())
            print(f"{name:12} {shown} {note:>16} {operations:11d} {calls:10d}  {incident.phase} {incident.outcome}")
    print(f"goals: {GOAL_S} s or less, {GOAL_OPERATIONS} operations or fewer")


def _added(w: World, known_at: datetime) -> timedelta | None:
    """Summed over every attempt that had to be replaced."""
    names = sorted(w.cloud.simulated.runs, key=lambda name: w.cloud.simulated.runs[name].attempt_number)
    total = timedelta(0)
    first = w.cloud.simulated.runs[names[0]].job
    since = known_at if first.stop_requested_at else first.ended_at or known_at
    for old, new in pairwise(names):
        old_run, new_run = w.cloud.simulated.runs[old], w.cloud.simulated.runs[new]
        began = first_step_at(w, new)
        if began is None:
            return None
        ended = old_run.job.ended_at or since
        stop = ended - (old_run.job.stop_requested_at or ended)
        start = began - new_run.job.created_at
        total += (began - since) - stop - start
        since = new_run.job.stop_requested_at or new_run.job.ended_at or began
    return total


if __name__ == "__main__":
    main()
