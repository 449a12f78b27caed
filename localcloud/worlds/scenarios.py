"""One scenario per playbook, for the suites that disturb them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from localcloud.aws.wire import FailureMode
from localcloud.engine.engine import Crash
from localcloud.worlds.recoveries import Script, World, crash_at, freeze_at, nan_at, spike_at, world
from rekindle.protocol.mailbox import ReplyOutcome


def _crash(w: World) -> None:
    w.submit(scripts=(Script(faults=(crash_at(25),)), Script()))


def _hang(w: World) -> None:
    w.submit(scripts=(Script(faults=(freeze_at(15),), reply=ReplyOutcome.CANNOT), Script()))


def _nan(w: World) -> None:
    poisoned = Script(faults=(nan_at(15),))
    w.submit(scripts=(poisoned, poisoned, poisoned))


def _spike(w: World) -> None:
    """With small numbers: every step more is played a dozen times."""
    loss = {"spike_heal_steps": 4, "spike_rewind_steps": 10, "skip_steps": 15, "skip_margin_steps": 2}
    small = {"name": "small", "loss": loss}
    w.cloud.client("ssm").put_parameter(
        Name="/rekindle/policies/small", Value=json.dumps(small), Type="String", Overwrite=True
    )
    bad = Script(heartbeat=timedelta(seconds=6), faults=(spike_at(35, span=5),))
    w.submit(scripts=(bad, bad), policy="small")


def _order(w: World) -> None:
    w.submit()
    w.run_for(timedelta(seconds=80))
    w.service.orders.resubmit("lm", who="ada", key="k1", from_step=None, skip=())


def _capacity(w: World) -> None:
    w.submit(scripts=(Script(faults=(crash_at(25),)), Script(lacks_capacity=True), Script()))


def _no_progress(w: World) -> None:
    w.submit(scripts=tuple(Script(faults=(crash_at(25, text=f"RuntimeError: {word}"),)) for word in "abcd"))


SCENARIOS: dict[str, Callable[[World], None]] = {
    "crash": _crash,
    "hang": _hang,
    "nan": _nan,
    "spike": _spike,
    "order": _order,
    "capacity": _capacity,
    "no_progress": _no_progress,
}


# How often each operation was called in the last play of a scenario, from its preparation to its end.
CALLS: dict[str, Counter[str]] = {}


@dataclass(frozen=True)
class Summary:
    """What must not depend on where we were killed."""

    phase: str
    outcome: str
    fault: str
    tries: tuple[str, ...]
    resumed: tuple[str, ...]
    jobs: tuple[tuple[str, str], ...]
    stops: tuple[str, ...]
    requests: int


@dataclass(frozen=True)
class Disturbed:
    """One call that goes wrong: the `skip`-th of `operation`."""

    operation: str
    how: FailureMode
    skip: int


def play(
    name: str, *, kill: int | None = None, side: str = "before", disturbed: Disturbed | None = None
) -> tuple[Summary, int]:
    """Run a scenario, killed around its `kill`-th checkpoint; returns its summary and how many checkpoints it made.

    before: the side effect of the step has happened, and nothing is stored. after: it is stored, no notice was sent.
    """
    with world(max_failed_attempts=5) as w:
        made = 0

        def hook(_arn: str, _updates: object) -> None:
            nonlocal made
            made += 1
            if made == kill:
                raise Crash

        w.cloud.engine.hook(**{side: hook})
        SCENARIOS[name](w)
        w.cloud.wire.calls.clear()
        if disturbed is not None:
            w.cloud.wire.disturb(disturbed.operation, disturbed.how, skip=disturbed.skip)
        incident = w.recover()
        CALLS[name] = Counter(w.cloud.wire.calls)
        resumed = () if name == "order" else tuple(str(item.resume_step) for item in incident.resubmission.tries)
        alive = [job for job in w.jobs().values() if job.status in ("InProgress", "Stopping")]
        assert len(alive) <= 1, w.story()
        assert len(w.incidents()) == 1, w.story()
        listed = w.cloud.client("s3").list_objects_v2(Bucket="rekindle-mailbox", Prefix="jobs/lm/rekindle/requests/")
        summary = Summary(
            phase=incident.phase.value,
            outcome=incident.outcome,
            fault=incident.fault.value,
            tries=tuple(item.name for item in incident.resubmission.tries),
            resumed=resumed,
            jobs=tuple(sorted((job.name, job.status) for job in w.jobs().values())),
            stops=incident.halt.stopped_attempts,
            requests=listed["KeyCount"],
        )
        return summary, made
