"""The sweep's own rules over the fakes: time, order, one bad Job, what is judged and what is left to a monitor."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.faults.heartbeat_claims import is_beyond_heartbeats
from chalicelib.domain.model.errors import Throttled
from chalicelib.domain.model.job import AlarmMode, Attempt, Job, NewestSave, WatchPlan
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import AttemptStatus, AttemptView, ReplyView
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.model.start_view import StartState, StartView
from chalicelib.platforms.training_job.platform import TRAINING_JOB
from chalicelib.ports.platforms import DiscoveredJob
from chalicelib.ports.sweep import Series, SweepMark
from chalicelib.services.intake.missed_signals import (
    BAD_WITHIN,
    QUEUED_AFTER,
    gone_quiet,
    signal_from_count,
    signal_from_metrics,
    signal_from_queue,
    signal_from_saves,
    signal_from_start,
    signals_from_heartbeat,
    silence,
)
from chalicelib.services.reporting.job_metrics import metric_queries, monitor_needs_asking, readings_of
from chalicelib.services.reporting.outcome import OutcomeKind
from chalicelib.services.sweep.job_check import ASK_HEARTBEAT_EVERY, ASK_SAVES_EVERY
from rekindle.protocol.signals import FaultClass
from tests.fakes.world import START
from tests.services.world import JOB, World

MINUTE = timedelta(minutes=1)


def a_job(name: str = "lm", **changes: Any) -> Job:
    values: dict[str, Any] = {
        "job_id": name,
        "name": name,
        "platform": TRAINING_JOB.name,
        "policy_name": "default",
        "created_at": START,
        "current_attempt": name,
        "attempt_number": 1,
        "attempt_started_at": START,
        "mailbox": f"s3://box/{name}",
    }
    return Job(**(values | changes))


def add(w: World, name: str, **changes: Any) -> None:
    job = a_job(name, **changes)
    w.scheduler.put(name, AttemptStatus.RUNNING)
    w.registry.register(job, Attempt(job_id=name, number=1, name=name, submitted_at=START))


def minutes(count: int, value: float = 2.0, *, until: int = 0) -> Series:
    """One point a minute, the last of them `until` minutes before START."""
    return tuple((START - MINUTE * n, value) for n in range(count + until, until, -1))


# --- time ---


class SlowBeats:
    """Every heartbeat takes so long to read."""

    def __init__(self, w: World, seconds: float) -> None:
        self.read: list[str] = []
        guard = threading.Lock()
        heartbeat = w.mailbox.heartbeat

        def slow(job: Job, attempt: AttemptView) -> AttemptView:
            with guard:
                w.clock.advance(timedelta(seconds=seconds))
                self.read.append(job.job_id)
            return heartbeat(job, attempt)

        w.mailbox.heartbeat = slow  # type: ignore[method-assign]  # the fake's clock does not pass by itself


def test_a_sweep_stops_in_time_counts_what_is_left_and_the_next_goes_on_there() -> None:
    w = World()
    for n in range(9):
        add(w, f"m{n}")
    slow = SlowBeats(w, seconds=10)  # the budget is 40 s: four Jobs, each sweep
    first = w.sweep.run()
    assert (first.jobs, first.left) == (4, 6)
    second = w.sweep.run()
    assert (second.jobs, second.left) == (4, 2)
    third = w.sweep.run()
    assert (third.jobs, third.left > 0) == (4, True)  # the last two, and two of the next round
    assert slow.read == ["lm", *[f"m{n}" for n in range(9)], "lm", "m0"]


def test_no_job_starves_however_slow_the_sweeps_are() -> None:
    w = World()
    for n in range(22):
        add(w, f"m{n:02d}")
    slow = SlowBeats(w, seconds=15)  # three Jobs a sweep
    for _ in range(40):
        w.sweep.run()
    counts = [slow.read.count(job.job_id) for job in w.registry.active()]
    assert min(counts) >= 1
    assert max(counts) - min(counts) <= 1


def test_no_job_is_looked_at_twice_in_one_sweep() -> None:
    w = World()
    for n in range(6):
        add(w, f"m{n}")
    slow = SlowBeats(w, seconds=0)
    w.marks.mark = SweepMark(round=1, cursor="m2", began_at=START, last_began_at=START, jobs=7, met=4)
    assert w.sweep.run().jobs == 7
    assert slow.read == ["m3", "m4", "m5", "lm", "m0", "m1", "m2"]
    assert (w.marks.mark.round, w.marks.mark.cursor) == (2, "m2")


# --- readers ---


def test_jobs_are_read_side_by_side_and_what_follows_is_done_in_order() -> None:
    """Each read waits for seven others: one after the other, the first would never end."""
    w = World()
    for n in range(15):
        add(w, f"m{n:02d}")
        w.scheduler.put(f"m{n:02d}", AttemptStatus.FAILED, failure_reason="boom")
    w.scheduler.put(JOB, AttemptStatus.FAILED, failure_reason="boom")
    together = threading.Barrier(8)
    describe = w.scheduler.describe

    def waiting(attempt: str) -> AttemptView:
        together.wait(timeout=20)
        if attempt == "m03":
            raise Throttled("no")
        if attempt == "m05":
            raise ValueError("a defect that only this Job brings out")
        return describe(attempt)

    w.scheduler.describe = waiting  # type: ignore[method-assign]  # the fake answers at once
    swept = replace(w.sweep, readers=8).run()
    assert (swept.jobs, swept.unread, swept.left) == (16, 2, 0)
    opened = [outcome.job_id for outcome in swept.outcomes if outcome.what is OutcomeKind.OPENED]
    assert opened == ["lm", *[f"m{n:02d}" for n in range(15) if n not in (3, 5)]]


def test_readers_stop_in_time_and_leave_no_job_out() -> None:
    w = World()
    for n in range(60):
        add(w, f"m{n:02d}")
    slow = SlowBeats(w, seconds=3)
    read: list[str] = []
    for met in (16, 16, 16, 13 + 16):  # a part of sixteen takes 48 s of the 40, one of thirteen 39
        swept = replace(w.sweep, readers=2).run()
        assert (swept.jobs, swept.unread) == (met, 0)
        read += slow.read
        slow.read.clear()
    assert sorted(read[:61]) == ["lm", *[f"m{n:02d}" for n in range(60)]]


def test_a_listing_reaches_back_to_the_round_before_the_last_look() -> None:
    w = World()
    w.sweep.run()
    assert w.listing.asked == []  # the first round asks about each Job itself
    began = w.clock.now()
    w.clock.advance(MINUTE)
    w.sweep.run()
    assert w.listing.asked == [began - timedelta(minutes=10)]


def test_what_could_not_be_taken_in_is_listed_again_until_it_is() -> None:
    """A change is listed once: after an outage of the table its Incident would wait for the Job's own turn."""
    w = World()
    w.sweep.run()
    began = w.clock.now()
    w.clock.advance(MINUTE)
    w.scheduler.put(JOB, AttemptStatus.FAILED, failure_reason="boom")
    describe = w.scheduler.describe

    def away(_: str) -> AttemptView:
        raise Throttled("no")

    w.scheduler.describe = away  # type: ignore[method-assign]  # the platform is away for two sweeps
    for _ in range(2):
        assert w.sweep.run().unread == 1
        w.clock.advance(MINUTE)
    w.scheduler.describe = describe  # type: ignore[method-assign]
    assert w.sweep.run().reopened == 1
    assert w.listing.asked == 3 * [began - timedelta(minutes=10)]


def test_a_mark_that_cannot_be_kept_costs_work_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    w = World()

    def broken(*_: Any) -> Any:
        raise Throttled("no")

    monkeypatch.setattr(w.marks, "load", broken)
    monkeypatch.setattr(w.marks, "save", broken)
    w.scheduler.put(JOB, AttemptStatus.FAILED, failure_reason="boom")
    assert w.sweep.run().reopened == 1


# --- one bad Job ---


def test_a_defect_that_only_one_job_brings_out_leaves_the_others_swept() -> None:
    w = World()
    add(w, "a-first")
    describe = w.scheduler.describe

    def odd(attempt: str) -> AttemptView:
        if attempt == "a-first":
            raise ZeroDivisionError
        return describe(attempt)

    w.scheduler.describe = odd  # type: ignore[method-assign]
    w.scheduler.put(JOB, AttemptStatus.FAILED, failure_reason="boom")
    swept = w.sweep.run()
    assert (swept.unread, swept.reopened) == (1, 1)


def test_a_registry_that_fails_half_way_is_taken_up_there_again() -> None:
    from chalicelib.domain.model.errors import DependencyUnavailable

    w = World()
    for n in range(3):
        add(w, f"m{n}")
    active = w.registry.active

    def cut(*, after: str = "") -> Any:
        jobs = list(active(after=after))
        yield from jobs[:2]
        if len(jobs) > 2:
            raise DependencyUnavailable("no")

    w.registry.active = cut  # type: ignore[method-assign]
    swept = w.sweep.run()
    assert (swept.jobs, swept.unread) == (0, 1)  # the chunk was not whole yet
    w.registry.active = active  # type: ignore[method-assign]
    assert w.sweep.run().jobs == 4


# --- whom to ask ---


def test_a_run_that_moves_is_asked_for_its_heartbeat_only_in_its_turn() -> None:
    w = World()
    slow = SlowBeats(w, seconds=0)
    for _ in range(20):
        w.metrics.put("Step", JOB, [(w.clock.now() - MINUTE, 1.0)])
        w.sweep.run()
        w.clock.advance(MINUTE)
    assert slow.read == [JOB] * 2


def test_metrics_can_be_read_in_every_fifth_round_and_nothing_is_assumed_in_between() -> None:
    w = World()
    sweep = replace(w.sweep, metrics_every=5)
    slow = SlowBeats(w, seconds=0)
    asked = []
    for _ in range(20):
        w.metrics.put("Step", JOB, [(w.clock.now() - MINUTE, 1.0)])
        w.metrics.asked.clear()
        sweep.run()
        asked.append(len(w.metrics.asked))
        w.clock.advance(MINUTE)
    assert sorted(asked) == [0] * 16 + [2] * 4
    assert slow.read == [JOB] * 2  # its turns of ten rounds


@pytest.mark.parametrize(
    ("step", "bad", "asks"),
    [
        (Known(minutes(3)), Known(()), False),
        (Known(minutes(3, until=5)), Known(()), True),
        (Known(()), Known(()), True),
        (Unknown("PartialData"), Known(()), True),
        (Known(minutes(3)), Unknown("PartialData"), True),
        (Known(minutes(3)), Known(minutes(1)), True),
        (Known(minutes(3)), Known(minutes(3, 0.0)), False),
    ],
)
def test_unknown_is_no_sign_of_life(step: Any, bad: Any, asks: bool) -> None:
    assert monitor_needs_asking({"step": step, "bad": bad}, now=START) is asks


def test_the_metrics_of_a_job_that_cannot_be_changed_are_its_attempts_own() -> None:
    job = a_job(current_attempt="lm-r2", watch=WatchPlan(loss="train:loss", step="train:step"))
    queries = list(metric_queries(job))
    assert {(query.namespace, query.name, query.dimension) for query in queries} == {
        ("/aws/sagemaker/TrainingJobs", "train:loss", ("TrainingJobName", "lm-r2")),
        ("/aws/sagemaker/TrainingJobs", "train:step", ("TrainingJobName", "lm-r2")),
    }
    assert readings_of(job, {}) == {"loss": Unknown("not asked for"), "step": Unknown("not asked for")}


def test_nothing_is_said_of_a_run_that_a_person_has_in_hand() -> None:
    w = World()
    w.hang(JOB)
    w.deliver_all()
    w.work()
    w.orders.cancel(w.last.incident_id, who="ada", key="k")
    w.adopt()
    w.work()
    w.mailbox.heartbeats[JOB] = AttemptView(
        name=JOB, status=AttemptStatus.RUNNING, heartbeat_at=w.clock.now(), loss_state="finite", work="stalled"
    )
    assert w.sweep.run().outcomes == []


def test_a_start_in_place_whose_event_was_lost_opens_one_incident() -> None:
    w = World()
    w.mailbox.heartbeats[JOB] = AttemptView(
        name=JOB,
        status=AttemptStatus.RUNNING,
        heartbeat_at=w.clock.now(),
        last_step=Known(62),
        loss_state="finite",
        work="training",
        life=2,
    )
    for _ in range(2 * ASK_HEARTBEAT_EVERY):
        w.sweep.run()
        w.tick(60)
        w.mailbox.heartbeats[JOB] = replace(w.mailbox.heartbeats[JOB], heartbeat_at=w.clock.now())
    w.work()
    assert [(signal.kind, signal.evidence["life"]) for signal in w.last.signals] == [(SignalKind.MONITOR_STARTED, 2)]
    assert len(w.store.list_for_job(JOB, limit=5)) == 1


@pytest.mark.parametrize(("heartbeat_ago", "is_told"), [(BAD_WITHIN - MINUTE, False), (BAD_WITHIN, True)])
def test_values_that_are_not_finite_are_heard_of_by_their_count_while_the_heartbeats_stand_still(
    heartbeat_ago: timedelta, is_told: bool
) -> None:
    w = World()
    w.clock.advance(timedelta(hours=1))
    w.mailbox.heartbeats[JOB] = AttemptView(
        name=JOB,
        status=AttemptStatus.RUNNING,
        heartbeat_at=w.clock.now() - heartbeat_ago,
        last_step=Known(62),
        loss_state="finite",
        work="training",
    )
    for metric in ("Step", "NonFinite"):
        w.metrics.put(metric, JOB, [(w.clock.now() - MINUTE * ago, 1.0) for ago in (3, 2, 1)])
    w.sweep.run()
    w.work()
    assert [incident.fault for incident, _ in w.store.list_open()] == ([FaultClass.NON_FINITE] if is_told else [])


def test_incidents_are_looked_after_before_the_jobs() -> None:
    w = World()
    w.hang(JOB)
    w.deliver_all()
    w.die(next(iter(w.workers.values())))
    w.clock.advance(timedelta(minutes=5))
    add(w, "other")
    SlowBeats(w, seconds=100)
    assert w.sweep.run().restarted == 1


# --- what a heartbeat says ---


@pytest.mark.parametrize(
    ("health", "kind", "fault"),
    [
        ("spiking", SignalKind.LOSS_SPIKE, FaultClass.LOSS_SPIKE),
        ("diverging", SignalKind.DIVERGENCE, FaultClass.DIVERGENCE),
        ("watch", None, None),
        ("ok", None, None),
        ("unknown", None, None),
    ],
)
def test_a_lost_word_about_the_loss_is_read_from_the_heartbeat(health: str, kind: Any, fault: Any) -> None:
    def heartbeat(step: int) -> AttemptView:
        return AttemptView(
            name="lm",
            status=AttemptStatus.RUNNING,
            heartbeat_at=START,
            last_step=Known(step),
            loss_state="finite",
            work="training",
            loss_health=health,
            onset_step=90,
            loss_baseline=2.0,
        )

    found = (signals_from_heartbeat(a_job(), heartbeat(step), now=START) for step in (100, 130))
    one, later = (next(iter(signals), None) for signals in found)
    if kind is None:
        assert (one, later) == (None, None)
        return
    assert one is not None
    assert later is not None
    assert (one.kind, one.fault, one.evidence["onset_step"], one.evidence["step"]) == (kind, fault, 90, 100)
    assert one.dedupe_key == later.dedupe_key


@pytest.mark.parametrize(
    ("loss", "health", "fault"), [("nan", "ok", "non_finite"), ("finite", "spiking", "loss_spike")]
)
def test_a_run_that_waits_to_be_started_again_owes_no_step_and_no_heartbeat(loss: str, health: str, fault: str) -> None:
    waits = AttemptView(
        name="lm",
        status=AttemptStatus.REPAIRING,
        heartbeat_at=START - timedelta(hours=2),
        last_step=Known(36),
        loss_state=loss,
        work="stalled",
        loss_health=health,
        onset_step=30,
    )
    assert [signal.fault for signal in signals_from_heartbeat(a_job(), waits, now=START)] == [fault]


def test_a_bad_loss_whose_event_was_lost_is_found_while_the_platform_starts_the_run_again() -> None:
    w = World()
    w.scheduler.put(JOB, AttemptStatus.REPAIRING)
    w.mailbox.heartbeats[JOB] = AttemptView(
        name=JOB,
        status=AttemptStatus.RUNNING,
        heartbeat_at=w.clock.now(),
        last_step=Known(62),
        loss_state="nan",
        work="training",
    )
    for _ in range(ASK_HEARTBEAT_EVERY):
        w.sweep.run()
        w.tick(60)
    w.work()
    assert [(signal.kind, signal.fault) for signal in w.last.signals] == [
        (SignalKind.STATE_REREAD, FaultClass.NON_FINITE)
    ]


def test_a_run_that_waits_for_spot_for_long_is_told_though_no_event_opens_an_incident() -> None:
    w = World()
    w.scheduler.put(JOB, AttemptStatus.REPAIRING)
    interrupted_at = w.clock.now()
    shown = replace(w.scheduler.runs[JOB].view, detail="InProgress/Interrupted", interrupted_since=interrupted_at)
    w.scheduler.runs[JOB].view = shown
    w.mailbox.heartbeats[JOB] = replace(
        shown, status=AttemptStatus.RUNNING, heartbeat_at=interrupted_at, loss_state="finite", work="training"
    )
    for _ in range(ASK_HEARTBEAT_EVERY):
        w.sweep.run()
        w.tick(60)
    assert not w.store.list_for_job(JOB, limit=5)
    for _ in range(2 * ASK_HEARTBEAT_EVERY):
        w.sweep.run()
        w.tick(60)
    w.work()
    assert [(signal.kind, signal.fault) for signal in w.last.signals] == [
        (SignalKind.ATTEMPT_STATE, FaultClass.UNCLEAR)
    ]


def test_a_stall_is_not_hidden_by_a_loss_that_is_no_number() -> None:
    view = AttemptView(
        name="lm",
        status=AttemptStatus.RUNNING,
        heartbeat_at=START,
        last_step=Known(36),
        loss_state="inf",
        work="stalled",
    )
    found = signals_from_heartbeat(a_job(), view, now=START)
    assert [signal.fault for signal in found] == [FaultClass.NON_FINITE, FaultClass.HANG]
    assert found[1].evidence["step"] == 36


# --- what a training job's own metrics say ---

PLAIN = a_job(mailbox="", watch=WatchPlan(loss="train:loss", step="train:step"))


def test_a_spike_that_goes_on_is_told_with_its_onset_and_one_that_healed_is_not() -> None:
    well = [(at, 2.0 + 0.01 * (n % 3)) for n, (at, _) in enumerate(minutes(120))]
    bad = [*well[:110], *[(at, 50.0) for at, _ in well[110:]]]
    steps = tuple((at, 1000.0 + n) for n, (at, _) in enumerate(well))
    signal = signal_from_metrics(PLAIN, {"loss": Known(tuple(bad)), "step": Known(steps)}, now=START)
    assert signal is not None
    assert (signal.kind, signal.evidence["onset_step"]) == (SignalKind.LOSS_SPIKE, 1110)
    healed = [*bad[:114], *well[114:]]
    assert signal_from_metrics(PLAIN, {"loss": Known(tuple(healed)), "step": Known(steps)}, now=START) is None


def test_without_a_step_metric_no_step_is_claimed_and_the_key_holds_while_the_window_moves() -> None:
    job = replace(PLAIN, watch=WatchPlan(loss="train:loss"))
    well = [(at, 2.0 + 0.01 * (n % 3)) for n, (at, _) in enumerate(minutes(130))]
    bad = [*well[:120], *[(at, 50.0) for at, _ in well[120:]]]
    signals = [signal_from_metrics(job, {"loss": Known(tuple(bad[cut:]))}, now=START) for cut in (0, 3, 9)]
    keys = {signal.dedupe_key for signal in signals if signal is not None}
    assert len(keys) == 1
    assert all(signal is not None and "step" not in signal.evidence for signal in signals)


def test_silence_is_measured_against_the_runs_own_rhythm() -> None:
    often = minutes(60, until=31)
    seldom = tuple((START - MINUTE * n, 2.0) for n in range(170, 30, -15))
    assert silence(PLAIN, [often], now=START) is not None
    assert silence(PLAIN, [minutes(60, until=29)], now=START) is None  # the floor
    assert silence(PLAIN, [seldom], now=START) is None  # one point a quarter of an hour: half an hour is nothing
    assert silence(PLAIN, [seldom], now=START + MINUTE * 20) is not None
    assert silence(PLAIN, [minutes(5, until=60)], now=START) is None  # too few points for a rhythm
    assert silence(PLAIN, [()], now=START) is None


def test_one_metric_that_cannot_be_read_forbids_calling_a_run_silent() -> None:
    quiet = minutes(60, until=45)
    both = {"loss": Known(quiet), "step": Known(quiet)}
    assert signal_from_metrics(PLAIN, both, now=START) is not None
    assert signal_from_metrics(PLAIN, both | {"step": Unknown("PartialData")}, now=START) is None


@pytest.mark.parametrize(
    ("waited", "state", "is_told"),
    [
        (QUEUED_AFTER, {}, True),
        (QUEUED_AFTER - timedelta(minutes=1), {}, False),
        (QUEUED_AFTER, {"held": True}, False),  # by a person, whose it is
        (QUEUED_AFTER, {"state": StartState.RUNNING}, False),
    ],
)
def test_a_run_that_was_put_back_and_gets_no_nodes_is_told(
    waited: timedelta, state: dict[str, Any], is_told: bool
) -> None:
    start = StartView(**({"handle": "7", "state": StartState.QUEUED} | state))
    view = AttemptView(name="lm-r2", status=AttemptStatus.STARTING, start=start)
    before = Attempt(job_id="lm", number=1, name="lm", submitted_at=START, ended_at=START)
    job = a_job(current_attempt="lm-r2", attempt_number=2)
    signal = signal_from_queue(job, view, before, now=START + waited)
    assert (signal is not None) is is_told
    assert signal is None or (signal.triggers, signal.occurred_at) == (True, START)
    assert signal_from_queue(job, view, None, now=START + waited) is None


@pytest.mark.parametrize(
    ("resume", "first", "is_told"),
    [
        (Known(200), Known(1), True),
        (Known(200), Known(191), False),
        (Known(200), Unknown("no heartbeat"), False),
        (Unknown("it was given no resume step"), Known(1), False),
    ],
)
def test_an_attempt_that_began_far_below_its_resume_step_is_told(resume: Any, first: Any, is_told: bool) -> None:
    own = Attempt(job_id="lm", number=2, name="lm-r2", submitted_at=START, resume_step=resume)
    view = AttemptView(name="lm-r2", status=AttemptStatus.RUNNING, heartbeat_at=START, first_step=first)
    signal = signal_from_start(a_job(current_attempt="lm-r2"), view, own)
    assert (signal is not None) is is_told
    assert signal is None or "was to resume at step 200, and began at step 1" in signal.summary


def test_metrics_that_went_on_after_the_newest_heartbeat_and_stop_are_told_with_both_times() -> None:
    heartbeat_at = START - timedelta(hours=1)
    told = gone_quiet(PLAIN, minutes(20, until=7), now=START, heartbeat_at=heartbeat_at)
    assert told is not None
    assert f"no heartbeat since {heartbeat_at:%H:%M}, and no metric since" in told.summary
    assert gone_quiet(PLAIN, minutes(20, until=5), now=START, heartbeat_at=heartbeat_at) is None


@pytest.mark.parametrize(("heartbeat_ago_s", "is_beyond"), [(0, False), (599, False), (600, True), (None, False)])
def test_a_count_of_bad_values_stands_by_itself_long_after_the_newest_heartbeat(
    heartbeat_ago_s: int | None, is_beyond: bool
) -> None:
    long_since = replace(PLAIN, attempt_started_at=START - timedelta(hours=1))
    count = signal_from_count(long_since, minutes(3), now=START)
    assert count is not None
    at = None if heartbeat_ago_s is None else count.occurred_at - timedelta(seconds=heartbeat_ago_s)
    view = AttemptView(name="lm", status=AttemptStatus.RUNNING, heartbeat_at=at)
    assert is_beyond_heartbeats(count, view) is is_beyond


def test_bad_values_count_only_minute_after_minute() -> None:
    long_since = replace(PLAIN, attempt_started_at=START - timedelta(hours=1))
    assert signal_from_count(long_since, minutes(3), now=START) is not None
    assert signal_from_count(PLAIN, minutes(3), now=START) is None  # of the attempt before this one
    assert signal_from_count(long_since, minutes(2), now=START) is None
    assert signal_from_count(long_since, minutes(3, 0.0), now=START) is None
    assert signal_from_count(long_since, minutes(3, until=10), now=START) is None
    apart = tuple((START - MINUTE * n, 1.0) for n in (40, 20, 1))
    assert signal_from_count(long_since, apart, now=START) is None


@pytest.mark.parametrize(
    ("gaps", "age", "is_told"),
    [
        ((10, 10, 10), 29, False),
        ((10, 10, 10), 31, True),
        ((30, 30, 30), 89, False),
        ((30, 30, 30), 91, True),
        ((30, 30, 120), 170, False),  # one long pause of late: half as much again is still usual
        ((30, 30, 120), 181, True),
        ((10, 10), 500, False),  # too few saves for a rhythm
        ((1, 1, 1, 1), 29, False),  # the floor
    ],
)
def test_an_overdue_checkpoint_is_one_beyond_the_runs_own_rhythm(
    gaps: tuple[int, ...], age: int, is_told: bool
) -> None:
    times = [START]
    for gap in gaps:
        times.append(times[-1] + MINUTE * gap)
    signal = signal_from_saves(a_job(), times, now=times[-1] + MINUTE * age)
    assert (signal is not None) is is_told
    if signal is not None:
        assert (signal.kind, signal.fault) == (SignalKind.SAVE_FAILED, FaultClass.UNCLEAR)


def test_that_a_run_has_saved_is_written_down_though_its_saves_are_deleted_later() -> None:
    w = World()
    add(w, "lm")
    w.saves.times["lm"] = (START,)
    for _ in range(ASK_SAVES_EVERY):
        w.sweep.run()
    assert w.registry.get("lm").newest_save == NewestSave(attempt="lm", step=40)
    w.saves.times["lm"] = ()
    for _ in range(ASK_SAVES_EVERY):
        w.sweep.run()
    assert w.registry.get("lm").newest_save == NewestSave(attempt="lm", step=40)


@pytest.mark.parametrize(
    ("in_mailbox", "attempt", "kept"),
    [
        (ReplyView(request_id="r1", outcome="saved", step=60, why=""), "lm", 60),
        (None, "lm", 40),  # a claim on the bus that the mailbox does not bear out
        (ReplyView(request_id="r1", outcome="cannot", step=None, why="hung"), "lm", 40),
        (ReplyView(request_id="r1", outcome="saved", step=20, why=""), "lm", 40),  # an older one, told again
        (ReplyView(request_id="r1", outcome="saved", step=60, why=""), "lm-elder", 40),
    ],
)
def test_a_reply_tells_of_a_save_where_the_mailbox_has_it(
    in_mailbox: ReplyView | None, attempt: str, kept: int
) -> None:
    w = World()
    add(w, "lm")
    w.registry.note_save("lm", NewestSave(attempt="lm", step=40))
    if in_mailbox is not None:
        w.mailbox.replies["r1"] = in_mailbox
    claim = Signal(
        kind=SignalKind.CHECKPOINT_REPLY,
        source=SignalSource.MONITOR,
        occurred_at=START,
        dedupe_key="reply",
        summary="it has saved",
        job_id="lm",
        attempt=attempt,
        evidence={"request_id": "r1", "outcome": "saved", "saved_step": 10**9},
    )
    w.intake.receive(claim)
    assert w.registry.get("lm").newest_save == NewestSave(attempt="lm", step=kept)


# --- alarms in the sweep ---


def test_alarms_are_made_once_and_follow_a_new_attempt() -> None:
    w = World()
    add(w, "plain", mailbox="", watch=WatchPlan(loss="train:loss", alarms=AlarmMode.JOB))
    w.sweep.run()
    assert w.alarm_store.own == {"plain": "plain"}
    assert w.registry.get("plain").watch.alarms_state == "made:plain"
    job = w.registry.get("plain")
    w.scheduler.put("plain-r2", AttemptStatus.RUNNING)
    w.registry.add_attempt(
        job, Attempt(job_id="plain", number=2, name="plain-r2", submitted_at=START), now=w.clock.now()
    )
    w.alarm_store.own.clear()
    w.sweep.run()
    assert w.alarm_store.own == {"plain": "plain-r2"}
    w.alarm_store.own.clear()
    w.sweep.run()
    assert w.alarm_store.own == {}  # made: nothing is asked again


def test_alarms_of_jobs_that_are_over_are_removed_page_by_page() -> None:
    w = World()
    for n in range(5):
        add(w, f"m{n}", watch=WatchPlan(alarms=AlarmMode.JOB))
    w.sweep.run()
    for n in (0, 3, 4):
        w.registry.deactivate(f"m{n}", ended_at=w.clock.now())
    w.registry.set_watch("m1", WatchPlan())
    w.alarm_store.own |= {"stranger": "stranger"}
    w.marks.mark = replace(w.marks.mark, round=59)
    for _ in range(4):
        w.sweep.run()
    assert set(w.alarm_store.own) == {"m2"}


def test_the_shared_alarm_goes_with_the_last_job_that_asked_for_it() -> None:
    w = World()
    add(w, "m0", watch=WatchPlan(alarms=AlarmMode.SHARED))
    w.sweep.run()
    assert w.alarm_store.has_shared
    w.marks.mark = replace(w.marks.mark, round=59)
    w.sweep.run()
    assert w.alarm_store.has_shared
    w.registry.deactivate("m0", ended_at=w.clock.now())
    w.marks.mark = replace(w.marks.mark, round=119)
    w.sweep.run()
    assert not w.alarm_store.has_shared


def test_a_quota_that_is_used_up_is_written_down_once_and_protects_all_the_same() -> None:
    w = World()
    w.alarm_store.quota = 0
    add(w, "m0", watch=WatchPlan(alarms=AlarmMode.JOB))
    w.scheduler.put("m0", AttemptStatus.FAILED, failure_reason="boom")
    swept = w.sweep.run()
    assert [(outcome.what, outcome.job_id) for outcome in swept.outcomes] == [(OutcomeKind.OPENED, "m0")]
    assert w.registry.get("m0").watch.alarms_state.startswith("refused:the account's quota")
    w.alarm_store.quota = 5
    assert w.alarms.ensure(w.registry.get("m0")).watch.alarms_state.startswith("refused:")
    assert w.alarm_store.own == {}
    asked_again = w.alarms.change(w.registry.get("m0"), WatchPlan(alarms=AlarmMode.JOB))
    assert (asked_again.watch.alarms_state, set(w.alarm_store.own)) == ("made:job", {"m0"})
    w.alarms.change(asked_again, WatchPlan(alarms=AlarmMode.SHARED))
    assert (w.alarm_store.own, w.alarm_store.has_shared) == ({}, True)


def test_jobs_that_fall_silent_together_make_their_source_the_suspect() -> None:
    """Each Signal says how many there were in the sweep; none of the runs is stopped for it."""
    w = World()
    names = ("a", "b")
    for name in names:
        add(w, name, mailbox="", watch=WatchPlan(loss="train:loss"))
        w.metrics.put("train:loss", name, minutes(60, until=40))
    w.sweep.run()
    w.adopt()
    heard = [signal for worker in w.workers.values() for signal in w.store.load(worker.incident_id).inbox]
    assert sorted(incident.job_id or "" for incident in heard) == ["a", "b"]
    assert {signal.evidence["silent_together"] for signal in heard} == {2}
    assert {one.fault for one in heard} == {FaultClass.HANG}


# --- attempts that no event has shown ---


def test_a_run_started_by_hand_whose_events_are_lost_is_followed_and_recovered() -> None:
    w = World()
    w.tick(500)
    w.scheduler.put(JOB, AttemptStatus.STOPPED)
    w.registry.deactivate(JOB, ended_at=w.clock.now(), halted_by="ada")
    w.tick(60)
    w.scheduler.put("lm-again", AttemptStatus.RUNNING, job_id=JOB, mailbox="s3://box/lm")
    w.sweep.run()
    w.tick(60)
    w.sweep.run()
    assert (w.registry.get(JOB).current_attempt, w.registry.get(JOB).active) == ("lm-again", True)
    w.scheduler.put("lm-again", AttemptStatus.FAILED, failure_reason="boom")
    w.sweep.run()
    assert w.registry.get(JOB).open_incident is not None


def test_a_protected_run_that_failed_before_any_event_arrived_opens_its_incident() -> None:
    w = World()
    w.scheduler.put("new", AttemptStatus.FAILED, failure_reason="boom")
    w.scheduler.put("done", AttemptStatus.COMPLETED)
    for _ in range(2):
        w.sweep.run()
        w.tick(60)
    assert w.registry.get("new").open_incident is not None
    assert w.registry.job_of_attempt("done") is None


def test_a_run_that_nobody_protects_is_asked_about_once_an_hour() -> None:
    w = World()
    for n in range(50):
        w.scheduler.put(f"other{n}", AttemptStatus.RUNNING, policy_name="")
    asked = []
    for _ in range(6):
        w.sweep.run()
        asked.append(w.scheduler.discovered)
        w.tick(60)
    assert asked == [0, 20, 40, 50, 50, 50]
    w.tick(3600)
    w.sweep.run()
    assert w.scheduler.discovered == 70


def test_a_name_that_cannot_be_looked_up_keeps_no_other_from_it() -> None:
    w = World()
    for name in ("bad", "slow", "new"):
        w.scheduler.put(name, AttemptStatus.RUNNING)
    discover = w.scheduler.discover

    def failing(attempt: str) -> DiscoveredJob | None:
        if attempt == "bad":
            raise ValueError("a defect that only this name brings out")
        if attempt == "slow" and w.clock.now() < START + 3 * MINUTE:
            raise Throttled("no")
        return discover(attempt)

    w.scheduler.discover = failing  # type: ignore[method-assign]  # the platform refuses one name
    unread = []
    for _ in range(5):
        unread.append(w.sweep.run().unread)
        w.tick(60)
    assert [w.registry.job_of_attempt(name) for name in ("bad", "slow", "new")] == [None, "slow", "new"]
    assert unread == [0, 2, 1, 0, 0]  # the defect is not met again within the hour
