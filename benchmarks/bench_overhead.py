"""Per playbook, in virtual time: the seconds that Rekindle adds, each with its reason, and the AWS calls that it makes.

Added = from the moment the fault can be seen (the job has ended, or an event says so) until the new attempt is accepted
by the platform, or until a person is paged where that is the end; less the platform's own stop. It is read from the
Incident's timeline: between two lines the Incident waited for what the first one says. Inherent, and shown apart, are
the time in which a bad loss may heal, back-offs, and what others have to do first: the run's answer
to a request, its ranks' reports, its heartbeats, capacity.

Calls are those of the service's own clients (recovery, intake, sweep), from the moment of the fault until the Incident
is closed; those of the emulated platform (training jobs and their monitors, queues, this bench) are counted apart, and
so are those of the minute's sweep, which runs whether or not anything is broken. Checkpoints of the durable engine are
the Lambda runtime's own and are shown as operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from chalicelib.domain.model.incident import Incident, TimelineEntry
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from localcloud.aws.wire import SERVICE
from localcloud.worlds.recoveries import Script, World, freeze_at, spike_at, world
from localcloud.worlds.scenarios import SCENARIOS
from rekindle.protocol.mailbox import ReplyOutcome
from rekindle.protocol.signals import FaultClass

GOAL_S = 6
GOAL_OPERATIONS = 60
# Two pages of the Incident included: each five reads, one of them of the metrics, and one write. Two more ask which
# other Jobs there are in its mailbox before anything is started beside them.
GOAL_CALLS = 62
CALLS_OF = "crash"  # whose calls are printed one by one, and for which the goal holds

OURS, OUTSIDE, INHERENT = "ours", "outside", "inherent"
# By the rule of the line that a wait began with: whose it is, and what for. The first that fits; "" fits all.
REASONS: tuple[tuple[str, str, str], ...] = (
    ("spike.", INHERENT, "a bad loss may heal"),
    ("resubmit.back_off", INHERENT, "back-off"),
    ("resubmit.waiting", INHERENT, "back-off"),
    ("capacity.", OUTSIDE, "capacity"),
    ("defer.confirm", OUTSIDE, "the run's heartbeats"),
    ("stacks.waiting", OUTSIDE, "its ranks' reports"),
    ("rollback.forensics", OUTSIDE, "the run's save"),
    ("playbook.checkpoint", OUTSIDE, "the run's answer"),
    ("checkpoint.waiting", OUTSIDE, "the run's answer"),
    ("", OURS, "the next observation"),
)
_NEW_ATTEMPT = ("resubmit.started", "verify.")  # the new attempt starts and trains: the platform's time and the run's


@dataclass
class Measured:
    """One playbook's story."""

    spans: Counter[tuple[str, str]] = field(default_factory=Counter)  # (whose, what for) to seconds
    calls: Counter[str] = field(default_factory=Counter)
    sweeps: Counter[str] = field(default_factory=Counter)
    platform_calls: int = 0
    operations: int = 0
    end: str = ""

    def seconds(self, whose: str) -> float:
        return sum(s for (who, _), s in self.spans.items() if who == whose)


def _muted(w: World) -> None:
    frozen = freeze_at(15, rank=2, is_mute=True)
    w.submit(scripts=(Script(faults=(frozen,), reply=ReplyOutcome.CANNOT), Script()))


def _hang(w: World) -> None:
    w.submit(scripts=(Script(faults=(freeze_at(15, rank=2),), reply=ReplyOutcome.CANNOT), Script()))


def _divergence(w: World) -> None:
    w.submit(scripts=(Script(faults=(spike_at(30, kind="diverge"),), reply=None),))


def _claim(w: World, fault: FaultClass) -> None:
    signal = Signal(
        kind=SignalKind.NODE_HEALTH,
        source=SignalSource.SAGEMAKER,
        occurred_at=w.cloud.clock.now(),
        dedupe_key=f"bench:{fault}",
        summary=f"lm: {fault}, says the bench",
        job_id="lm",
        attempt="lm",
        fault=fault,
        triggers=True,
    )
    w.service.intake.receive(signal)


def _of_a_frozen_run(fault: FaultClass, *, is_deaf: bool) -> Callable[[World], None]:
    """`is_deaf`: its monitor is frozen as well; it sends no heartbeat and answers nothing."""

    def prepare(w: World) -> None:
        frozen = Script(
            faults=(freeze_at(15, rank=2),),
            reply=None if is_deaf else ReplyOutcome.CANNOT,
            stall_limit=timedelta(hours=1),
        )
        w.submit(scripts=(frozen, Script()))
        w.run_until(lambda: "lm" in w.cloud.simulated.runs and w.cloud.simulated["lm"].frozen_by is not None)
        if is_deaf:
            w.cloud.simulated["lm"].timers.pop("heartbeat").cancel()
        w.cloud.clock.run_for(timedelta(seconds=5))
        _claim(w, fault)

    return prepare


PLAYBOOKS: dict[str, Callable[[World], None]] = {
    "crash": SCENARIOS["crash"],
    "hang, all ranks report": _hang,
    "hang, one rank mute": _muted,
    "hang, no rank reports": SCENARIOS["hang"],
    "non-finite loss": SCENARIOS["nan"],
    "loss spike": SCENARIOS["spike"],
    "divergence, to the page": _divergence,
    "node hardware, run stuck": _of_a_frozen_run(FaultClass.NODE_HARDWARE, is_deaf=False),
    "the same, monitor dead": _of_a_frozen_run(FaultClass.NODE_HARDWARE, is_deaf=True),
    "node lost, run stuck": _of_a_frozen_run(FaultClass.NODE_LOST, is_deaf=False),
    "order to resubmit": SCENARIOS["order"],
    "no capacity": SCENARIOS["capacity"],
    "no progress, to the page": SCENARIOS["no_progress"],
}


def measure(prepare: Callable[[World], None], *, to_the_page: bool = False) -> Measured:
    """Play one story."""
    result = Measured()
    with world(log_level="WARNING") as w:
        prepare(w)
        _apart(w, "sweep", result.sweeps)
        _until_broken(w)
        w.cloud.wire.calls_by.clear()
        result.sweeps.clear()
        w.run_until(lambda: _is_over(w))
        own = Counter({op: n for (who, op), n in w.cloud.wire.calls_by.items() if who == SERVICE})
        result.calls = own - result.sweeps
        result.platform_calls = w.cloud.wire.calls_by.total() - own.total()
        result.operations = sum(len(execution.operations) - 1 for execution in w.cloud.engine.executions())
        (incident,) = w.incidents()
        result.end = f"{incident.phase} {incident.outcome}"
        _account(w, incident, result, to_the_page=to_the_page)
    return result


def _until_broken(w: World) -> None:
    """What happens before the fault is no part of its recovery."""

    def is_broken() -> bool:
        run = w.cloud.simulated.runs.get("lm")
        return run is not None and (run.job.ended_at is not None or bool(w.cloud.engine.executions()))

    w.run_until(is_broken)


def _is_over(w: World) -> bool:
    """Asked of the engine, so that the question is no call of the service's."""
    played = w.cloud.engine.executions()
    return bool(played) and not any(execution.current_status().value == "RUNNING" for execution in played)


def _apart(w: World, function: str, counted: Counter[str]) -> None:
    """Count the service's calls in each run of this function as well. Virtual time runs one at a time."""
    inner = w.cloud.functions.handlers[function]

    def handler(event: Any, context: Any) -> Any:
        before = Counter(w.cloud.wire.calls_by)
        try:
            return inner(event, context)
        finally:
            for (who, operation), count in (w.cloud.wire.calls_by - before).items():
                if who == SERVICE:
                    counted[operation] += count

    w.cloud.functions.handlers[function] = handler


def _account(w: World, incident: Incident, result: Measured, *, to_the_page: bool) -> None:
    lines = w.service.look.store.timeline(incident.incident_id)
    first = _visible_at(w, lines[0], since=None)
    result.spans[OURS, "until it is looked at"] += (lines[0].at - first).total_seconds()
    for line, after in zip(lines, [*lines[1:], None], strict=True):
        if to_the_page and "Notify" in line.actions:
            return
        if after is None:
            return
        if line.rule.startswith(_NEW_ATTEMPT):
            if not after.rule.startswith(("verify.waiting", "verify.passed", "verify.blind", "verify.starting")):
                seen_at = _visible_at(w, after, since=line.at)
                result.spans[OURS, "until it is looked at"] += (after.at - seen_at).total_seconds()
            continue
        whose, what = next((who, why) for rule, who, why in REASONS if line.rule.startswith(rule))
        taken = (after.at - line.at).total_seconds()
        if line.phase == "stopping":
            taken -= _stopping(w, line.at, after.at)
            whose, what = OURS, "to see that it stopped"
        if taken > 0:
            result.spans[whose, what] += taken


def _visible_at(w: World, line: TimelineEntry, *, since: datetime | None) -> datetime:
    """When that could be seen which the look of `line` saw: the end of a job, or an event."""
    known = [datetime.fromisoformat(signal["at"]) for signal in line.facts.get("signals", ()) if signal["fault"]]
    known += [run.job.ended_at for run in w.cloud.simulated.runs.values() if run.job.ended_at is not None]
    fit = [at for at in known if at <= line.at and (since is None or at >= since)]
    return max(fit, default=line.at)


def _stopping(w: World, since: datetime, until: datetime) -> float:
    """How much of that time the platform was stopping a job."""
    spent = timedelta(0)
    for run in w.cloud.simulated.runs.values():
        began, ended = run.job.stop_requested_at, run.job.ended_at
        if began is not None and ended is not None:
            spent += max(min(ended, until) - max(began, since), timedelta(0))
    return spent.total_seconds()


def main() -> None:
    """Print one row per playbook, then its reasons; then the calls of a recovery from a crash."""
    print(
        f"{'playbook':26} {'ours s':>7} {'outside s':>10} {'inherent s':>11} {'operations':>11} {'own calls':>10}"
        f" {'+ sweeps':>9} {'platform':>9}  end"
    )
    shown: dict[str, Measured] = {}
    for name, prepare in PLAYBOOKS.items():
        one = shown[name] = measure(prepare, to_the_page=name.startswith("divergence"))
        print(
            f"{name:26} {one.seconds(OURS):7.1f} {one.seconds(OUTSIDE):10.1f} {one.seconds(INHERENT):11.1f}"
            f" {one.operations:11d} {one.calls.total():10d} {one.sweeps.total():9d} {one.platform_calls:9d}  {one.end}"
        )
        for (whose, what), seconds in sorted(one.spans.items(), key=lambda item: -item[1]):
            if seconds >= 0.05:
                print(f"    {seconds:6.1f} s  {whose:8}  {what}")
    print(f"\ncalls of a recovery from a {CALLS_OF}, by operation")
    one = shown[CALLS_OF]
    for operation in sorted(one.calls.keys() | one.sweeps.keys()):
        swept = f"  and {one.sweeps[operation]} by the sweep" if one.sweeps[operation] else ""
        print(f"    {one.calls[operation]:4d}  {operation}{swept}")
    print(
        f"goals: ours {GOAL_S} s or less, {GOAL_OPERATIONS} operations or fewer, {GOAL_CALLS} own calls or fewer after "
        "a crash, beside the sweep, which is made each minute for all runs together"
    )


if __name__ == "__main__":
    main()
