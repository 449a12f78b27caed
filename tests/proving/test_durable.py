"""The world's durable executions: killed wherever they are, and the world goes on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from chalicelib.domain.model.incident import execution_name
from localcloud.aws.clock import SimClock
from localcloud.engine.threads import Context, MemoryExecutions


def test_an_execution_that_is_lost_before_it_began_never_runs() -> None:
    clock, ran = SimClock(stall_s=5.0), []

    def work(payload: dict[str, Any], context: Context) -> str:
        del context
        ran.append(payload["generation"])
        return "done"

    executions = MemoryExecutions(clock, work, lambda: timedelta(0))
    executions.start("inc-1", generation=0)
    for execution in executions.all.values():  # as `executions_lost` does, in the 200 ms before it begins
        execution.kill()
    assert executions.running() == frozenset(), "the sweep sees that it is lost, and starts the next generation"
    executions.start("inc-1", generation=1)
    clock.run_for(timedelta(seconds=1))
    assert ran == [1]
    assert executions.all[execution_name("inc-1", 1)].answer == "done"
