"""Protected Jobs: what would be lost, and not be seen, at the next fault. Pure: `now` is handed in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import Final

from rekindle.compat import from_iso
from rekindle.doctor.base.checks import OURS, PLANS, Area, check
from rekindle.doctor.base.facts import NOT_ASKED, Found, Missing, NotInspected, PlanFacts
from rekindle.doctor.base.findings import Finding, counted, error, quoted, unknown, warning
from rekindle.doctor.cluster.capacity import SOON, shown
from rekindle.protocol.mailbox import Heartbeat

SILENT: Final = timedelta(minutes=10)
# Source: Meta, "Revisiting Reliability in Large-Scale Machine Learning Research Clusters" (2024): 6.5 failures per 1000
# node-days, 8 GPUs to a node.
FAILURES_PER_NODE_DAY: Final = 6.5 / 1000
GPUS_PER_NODE: Final = 8
MIN_FAILURES: Final = 3  # fewer of the Job's own say little about its rate
# What a save costs the run, where it was not measured: the same paper's 0.5 minutes.
ASSUMED_SAVE: Final = timedelta(seconds=30)
MUCH: Final = 2.0  # times the best interval: a quarter more is lost than need be; below it the curve is flat
# From then on a plan's running instances are terminated. Source: SageMaker guide, reserve-capacity-with-training-plans
TRAINING_LEAD: Final = timedelta(minutes=30)
# Ends that lose what was not saved. Words of rekindle.signatures.FaultClass.
HARD: Final = frozenset(
    {"node_hardware", "node_lost", "platform_error", "software_crash", "out_of_memory", "hang", "unclear"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """One active Job.

    `saves`: times of its newest complete checkpoints, oldest first. `failures`: start times of its hard-fault Incidents
    since `counted_since` (None: since ever). `gpus`: None where unknown. `plan`: None where it uses no training plan.
    """

    job_id: str
    attempt: str
    since: datetime
    mailbox: str
    policy: str
    policy_problem: str = ""
    gpus: int | None = None
    heartbeat: Found[Heartbeat] = NOT_ASKED
    saves: Found[tuple[datetime, ...]] = NOT_ASKED
    failures: tuple[datetime, ...] = ()
    counted_since: datetime | None = None
    plan: Found[PlanFacts] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """Mean time between failures, and where that figure is from."""

    mean: timedelta
    source: str


def failure_rate(run: RunFacts, *, now: datetime) -> Failing | NotInspected:
    """From the Job's own failures where there are enough, else from its size and the published rate."""
    if len(run.failures) >= MIN_FAILURES:
        since = run.counted_since or run.since
        mean = (now - since) / len(run.failures)
        return Failing(mean=mean, source=f"its own {len(run.failures)} failures since {since:%Y-%m-%d}")
    gpus = run.gpus
    if gpus is None and isinstance(run.heartbeat, Heartbeat):
        gpus = run.heartbeat.world_size  # one rank to a GPU, as torchrun does it
    if not gpus:
        return NotInspected("neither its size nor enough failures of its own are known")
    nodes = math.ceil(gpus / GPUS_PER_NODE)
    mean = timedelta(days=1 / (nodes * FAILURES_PER_NODE_DAY))
    return Failing(mean=mean, source=f"{counted(nodes, 'node')} at 6.5 failures per 1000 node-days")


def best_interval(mean: timedelta, save: timedelta = ASSUMED_SAVE) -> timedelta:
    """Young's interval between checkpoints: sqrt(2 x save x mean time between failures)."""
    return timedelta(seconds=math.sqrt(2 * save.total_seconds() * mean.total_seconds()))


def run_findings(run: RunFacts, *, now: datetime) -> Iterator[Finding]:
    """Everything about one Job."""
    label = f"job {run.job_id}"
    yield from _policy(run, label)
    yield from _plan(run, label, now)
    yield from run_mailbox(run, label)
    if run.mailbox:
        yield from _heartbeat(run, label, now)
        yield from _cadence(run, label, now)


@check("run-policy", Area.RUNS, OURS)
def _policy(run: RunFacts, label: str) -> Iterator[Finding]:
    """Its policy exists and can be used.

    An Incident with an unusable policy runs in shadow mode.
    """
    if run.policy_problem:
        yield error(f"{label}:policy", f"policy {quoted(run.policy)}: {run.policy_problem}")


@check("run-mailbox", Area.RUNS, OURS)
def run_mailbox(run: RunFacts, label: str) -> Iterator[Finding]:
    """The Job has a mailbox.

    Without one there is no emergency checkpoint and no proof of progress.
    """
    if not run.mailbox:
        text = "it has no mailbox: no emergency checkpoint, no stacks, no proof of progress (docs/monitor.md)"
        yield warning(label, text)


@check("run-plan", Area.RUNS, PLANS)
def _plan(run: RunFacts, label: str, now: datetime) -> Iterator[Finding]:
    """A training job's training plan is active and does not end within two days.

    Instances are removed half an hour before a plan's end, and no event is sent.
    """
    where = f"{label}:training plan"
    match run.plan:
        case Missing():
            yield error(where, "the training plan that it names does not exist")
        case NotInspected(why):
            yield unknown(where, f"whether it is on a training plan was not looked at: {why}")
        case PlanFacts(status="Active", ends_at=None):
            yield unknown(where, "its training plan says no end")
        case PlanFacts(status="Active", ends_at=datetime() as ends_at):
            last = ends_at - TRAINING_LEAD
            text = f"its training plan ends at {shown(ends_at)}; SageMaker takes its instances from {shown(last)} on"
            if last <= now:
                yield error(where, f"{text}, which is past")
            elif last - now < SOON:
                yield warning(where, text)
        case PlanFacts() as plan:
            text = "it has no capacity, so the run cannot be started again"
            yield error(where, f"its training plan is {plan.status}: {text}")


@check("run-heartbeat", Area.RUNS, OURS)
def _heartbeat(run: RunFacts, label: str, now: datetime) -> Iterator[Finding]:
    """Its current attempt has a heartbeat of the last ten minutes.

    A silent monitor detects no hang and no NaN.
    """
    where = f"{label}:{run.attempt}"
    match run.heartbeat:
        case Missing():
            if now - run.since >= SILENT:
                text = "its monitor has never been heard of: is REKINDLE_MAILBOX set, and may its role write there?"
                yield warning(where, text)
        case NotInspected(why):
            yield unknown(where, f"its heartbeat was not looked at: {why}")
        case Heartbeat() as heartbeat if now - heartbeat.at >= SILENT:
            minutes = (now - heartbeat.at).total_seconds() / 60
            yield warning(where, f"its monitor has been silent for {minutes:.0f} minutes")


@check("run-cadence", Area.RUNS, "Young 1974, Daly 2006: the interval is sqrt(2 x save time x time between failures)")
def _cadence(run: RunFacts, label: str, now: datetime) -> Iterator[Finding]:
    """How often it saves, against the best interval for its failure rate.

    Half an interval is lost at each hard failure, and each save costs training time.
    """
    where = f"{label}:checkpoints"
    rate = failure_rate(run, now=now)
    if isinstance(run.saves, NotInspected):
        yield unknown(where, f"how often it saves was not looked at: {run.saves.why}")
        return
    if isinstance(rate, NotInspected):
        yield unknown(where, f"how often it should save is not known: {rate.why}")
        return
    best = best_interval(rate.mean)
    should = f"the best interval is about {_span(best)} ({rate.source}, {ASSUMED_SAVE.seconds} s assumed for a save)"
    saves = () if isinstance(run.saves, Missing) else run.saves
    real = interval(saves)
    if real is None:
        since = saves[-1] if saves else run.since
        if now - since > MUCH * best:
            yield warning(where, f"no two checkpoints of {_span(now - since)} are known; {should}")
        return
    late = now - saves[-1]
    if late > MUCH * max(real, best):
        yield warning(where, f"its newest checkpoint is {_span(late)} old; it saved every {_span(real)}")
    elif real > MUCH * best:
        lost = (real - best) / 2
        text = f"it saves every {_span(real)}; {should}: each hard failure costs {_span(lost)} more than it need"
        yield warning(where, text)
    elif MUCH * MUCH * real < best:
        share = ASSUMED_SAVE / real - ASSUMED_SAVE / best
        text = f"it saves every {_span(real)}; {should}: that may cost {share:.1%} of its time more than it need"
        yield warning(where, text)


def interval(saves: Sequence[datetime]) -> timedelta | None:
    """The median time between two saves, so that a pause of training is no gap; None for fewer than two."""
    gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(sorted(saves)) if later > earlier]
    return timedelta(seconds=median(gaps)) if gaps else None


def _span(span: timedelta) -> str:
    seconds = span.total_seconds()
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def hard_failures(incidents: Sequence[Mapping[str, object]]) -> tuple[datetime, ...]:
    """When a Job's Incidents of a hard fault were opened, oldest first, as the API lists them."""
    found = []
    for incident in incidents:
        at = incident.get("opened_at")
        if incident.get("fault") in HARD and isinstance(at, str):
            try:
                found.append(from_iso(at))
            except ValueError:
                continue
    return tuple(sorted(found))
