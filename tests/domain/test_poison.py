"""What a loss that is not finite rules out, and how much it takes to believe that it is one."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from chalicelib.domain.model.action import QuarantineCheckpoint, ResubmitJob, StopJob
from chalicelib.domain.model.evidence import Onset, Stretch
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import AttemptStatus, CheckpointView, Observation
from chalicelib.domain.model.signal import SignalKind, SignalSource
from chalicelib.domain.policy.document import DEFAULT_POLICY
from chalicelib.domain.resume.resume_point import choose_resume_point
from chalicelib.domain.resume.rollback import account_rollback, data_rollbacks, onset_to_precede
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import MINUTE, NOW, a_try, checkpoint, decide, incident, look, seen, signal, view
from tests.domain.policies import changed

NAN = FaultClass.NON_FINITE
POINTS = tuple(checkpoint(step) for step in (100, 99, 98, 97, 90, 50))


def poisoned(onset: int, **more: object) -> Incident:
    return incident(Phase.STOPPING, NAN, onset_attempt="lm", onset_step=Known(onset), **more)


def resumes_at(case: Incident, points: tuple[CheckpointView, ...] = POINTS) -> int | None:
    point = choose_resume_point(points, case, DEFAULT_POLICY)
    return None if point is None or not isinstance(point.step, Known) else point.step.value


@pytest.mark.parametrize(("onset", "expected"), [(101, 99), (100, 98), (99, 97), (98, 90), (52, 50), (51, None)])
def test_a_checkpoint_of_the_update_before_the_first_bad_loss_is_not_resumed_from(
    onset: int, expected: int | None
) -> None:
    """That loss was computed from the weights which the update before it left."""
    assert resumes_at(poisoned(onset)) == expected


def test_a_checkpoint_that_its_monitor_held_for_poisoned_is_never_chosen() -> None:
    held = tuple(
        dataclasses.replace(point, problems=("a value that is not finite had been seen",)) if point.step > 97 else point
        for point in POINTS
    )
    assert resumes_at(incident(Phase.RESUBMITTING, FaultClass.SOFTWARE_CRASH), held) == 97


@pytest.mark.parametrize(
    ("read", "bound_s", "expected", "told"),
    [
        (99, 3600, 99, "that of step 100 was saved while the loss could not be read"),
        (90, 3600, 90, "that of step 100 was saved while the loss could not be read"),
        (90, 5, 100, "whether its weights are finite is not known"),  # a start may not throw away so much by itself
        (90, 0, 90, "that of step 100 was saved while the loss could not be read"),  # it may throw away anything
        (0, 3600, 100, "whether its weights are finite is not known"),  # none was read
    ],
)
def test_what_was_saved_while_the_loss_could_not_be_read_is_no_clean_resume_point(
    read: int, bound_s: int, expected: int, told: str
) -> None:
    points = tuple(dataclasses.replace(point, loss_unread=point.step > read) for point in POINTS)
    policy = changed(approvals={"max_loss": timedelta(seconds=bound_s)})
    point = choose_resume_point(points, incident(Phase.RESUBMITTING, FaultClass.SOFTWARE_CRASH), policy)
    assert point is not None
    assert point.step == Known(expected)
    assert told in point.text
    ordered = incident(Phase.RESUBMITTING, order={"do": "resubmit", "from_step": 100})
    chosen = choose_resume_point(points, ordered, policy)
    assert chosen is not None
    assert chosen.step == Known(100), "a person named it"


def test_the_onset_of_a_lost_event_is_read_from_the_heartbeat() -> None:
    """Without it the newest step would count, and what was saved between the two would be resumed from."""
    what = view(step=150, loss_state="nan", loss_health="non_finite", onset_step=99)
    after = look(incident(), seen(what, checkpoints=Known(POINTS))).incident
    assert after.loss.onset_step == Known(99)


def test_the_heartbeats_onset_sinks_what_a_later_event_said() -> None:
    what = view(step=150, loss_state="nan", loss_health="non_finite", onset_step=99)
    late = signal(NAN, kind=SignalKind.NON_FINITE, step=120)
    after = look(incident(), seen(what, new_signals=(late,), checkpoints=Known(POINTS))).incident
    assert after.loss.onset_step == Known(99)


def test_a_poisoned_stretch_outlives_its_incident() -> None:
    """Its owner may start the Job anew by hand; what the poisoned attempt saved is no better for that."""
    bad = signal(NAN, kind=SignalKind.NON_FINITE, step=99)
    after = look(incident(), seen(new_signals=(bad,), checkpoints=Known(POINTS))).incident
    assert Stretch(attempt="lm", from_step=98) in after.loss.stretches
    later = incident(Phase.RESUBMITTING, FaultClass.SOFTWARE_CRASH, attempt="lm-again", stretches=after.loss.stretches)
    assert resumes_at(later) == 97


# --- the checkpoint, not the data -----------------------------------------------------------------------------------


def went_bad_again(onset: int, **more: object) -> Incident:
    """lm went bad at 100 and was rolled back to 90; lm-r2 has gone bad at `onset`."""
    return incident(
        Phase.STOPPING,
        NAN,
        attempt="lm-r2",
        attempt_number=2,
        tries=(a_try(resume_step=Known(90), resume_manifest="s3://b/m/lm/90", resume_root="s3://b/lm/90"),),
        onsets=(Onset(attempt="lm", fault=NAN, step=Known(100)),),
        rollbacks=1,
        onset_attempt="lm-r2",
        onset_step=Known(onset),
        stopped_attempts=("lm-r2",),
        **more,
    )


def ended(case: Incident) -> Observation:
    del case
    what = view(AttemptStatus.STOPPED, name="lm-r2", step=95)
    return seen(what, next_number=3, checkpoints=Known(POINTS[-2:]))


def test_a_run_that_is_not_finite_from_its_first_step_on_condemns_what_it_resumed_from() -> None:
    decision = look(went_bad_again(91), ended(went_bad_again(91)))
    marked = [action.root for action in decision.actions if isinstance(action, QuarantineCheckpoint)]
    (start,) = [action for action in decision.actions if isinstance(action, ResubmitJob)]
    assert marked == ["s3://b/lm/90"]
    assert start.resume_step == Known(50)
    assert start.skips == ()


@pytest.mark.parametrize(("onset", "expected"), [(91, 50), (95, 90)])
def test_what_a_start_of_the_platform_s_own_began_from_is_not_resumed_from_where_its_first_loss_was_bad(
    onset: int, expected: int
) -> None:
    """No order of ours names what it loaded: its first step does."""
    what = view(name="lm-r2", step=96, loss_state="nan", loss_health="non_finite", onset_step=onset)
    what = dataclasses.replace(what, first_step=Known(91))
    case = incident(attempt="lm-r2", attempt_number=2)
    points = (checkpoint(90), checkpoint(90, attempt="older", saved_at=NOW - MINUTE * 60), checkpoint(50))
    bad = signal(NAN, kind=SignalKind.NON_FINITE, attempt="lm-r2", step=onset)
    after = look(case, seen(what, new_signals=(bad,), checkpoints=Known(points))).incident
    later = incident(Phase.RESUBMITTING, FaultClass.SOFTWARE_CRASH, attempt="lm-3", stretches=after.loss.stretches)
    assert resumes_at(later, points[::2]) == expected


@pytest.mark.parametrize(
    ("onsets", "now", "expected"),
    [((37,), 70, 70), ((37, 70), 71, 70), ((37, 70), 68, 68), ((70, 37), 72, 70), ((37, 40), 42, 37), ((), 50, 50)],
)
def test_what_is_repeated_near_a_later_onset_goes_back_before_that_one_only(
    onsets: tuple[int, ...], now: int, expected: int
) -> None:
    """The attempts between have trained past the earlier onset with a finite loss."""
    before = tuple(Onset(attempt=f"lm-{n}", fault=NAN, step=Known(step)) for n, step in enumerate(onsets))
    assert onset_to_precede(poisoned(now, onsets=before)) == Known(expected)


def test_a_trainer_that_loads_something_newer_than_its_plan_names_has_not_tried_what_it_names() -> None:
    """lm-r2 was given 90, has loaded 98, and has gone bad at once: 90 is as good as before."""
    case = went_bad_again(99)
    what = dataclasses.replace(view(AttemptStatus.STOPPED, name="lm-r2", step=99), first_step=Known(99))
    decision = look(case, seen(what, next_number=3, checkpoints=Known((checkpoint(98), *POINTS[-2:]))))
    assert not any(isinstance(action, QuarantineCheckpoint) for action in decision.actions)
    (start,) = [action for action in decision.actions if isinstance(action, ResubmitJob)]
    assert start.resume_step == Known(90)
    assert start.skips == (), "the checkpoint that it loaded is to blame, not the data"


def test_of_two_checkpoints_of_one_step_the_one_that_was_loaded_is_condemned() -> None:
    given, other = checkpoint(90), checkpoint(90, attempt="other", saved_at=NOW - MINUTE)
    case = went_bad_again(91)
    what = dataclasses.replace(view(AttemptStatus.STOPPED, name="lm-r2", step=95), first_step=Known(91))
    after = look(case, seen(what, next_number=3, checkpoints=Known((given, other)))).incident
    assert [(stretch.attempt, stretch.from_step) for stretch in after.loss.stretches] == [("lm", 90)]


def test_what_is_condemned_is_marked_also_where_the_budget_is_spent() -> None:
    """The Job's next Incident, or a person's attempt, would resume from it again."""
    spent = went_bad_again(91, fruitless_before=DEFAULT_POLICY.budgets.max_no_progress)
    decision = look(spent, ended(spent))
    assert decision.incident.phase is Phase.HANDED_OVER
    assert [action.root for action in decision.actions if isinstance(action, QuarantineCheckpoint)] == ["s3://b/lm/90"]


def test_a_run_that_goes_bad_where_the_data_are_bad_condemns_nothing() -> None:
    decision = look(went_bad_again(100), ended(went_bad_again(100)))
    assert not any(isinstance(action, QuarantineCheckpoint) for action in decision.actions)
    (start,) = [action for action in decision.actions if isinstance(action, ResubmitJob)]
    assert start.resume_step == Known(90)
    assert start.skips != ()


def test_a_roll_back_for_a_poisoned_checkpoint_is_none_of_the_data() -> None:
    after = account_rollback(went_bad_again(91), DEFAULT_POLICY)
    assert (after.loss.rollbacks, data_rollbacks(after, DEFAULT_POLICY), after.loss.skips) == (2, 0, ())


def test_a_roll_back_that_is_repeated_begins_before_the_last_one_though_the_distance_is_zero() -> None:
    once_more = went_bad_again(100)
    once_more = once_more.changed(
        rollbacks=2,
        onsets=(*once_more.loss.onsets, Onset(attempt="lm-r2", fault=NAN, step=Known(100))),
        tries=(*once_more.resubmission.tries, a_try(3, resume_step=Known(90), resume_manifest="m")),
        attempt="lm-r3",
        onset_attempt="lm-r3",
        onset_step=Known(100),
    )
    planned = account_rollback(once_more, DEFAULT_POLICY)
    point = choose_resume_point(POINTS, planned, DEFAULT_POLICY)
    assert point is not None
    assert point.step == Known(50)


# --- one value is news ----------------------------------------------------------------------------------------------


def printed(step: int | None, *, minute: int = 0) -> object:
    return signal(NAN, kind=SignalKind.TRAINING_LOG, step=step, at=NOW - 10 * MINUTE + minute * MINUTE)


def test_one_printed_nan_stops_nothing_and_is_told_in_the_end() -> None:
    case = incident()
    now, rules = NOW, []
    what = seen(view(step=None), new_signals=(printed(100),), checkpoints=Known(POINTS))  # type: ignore[arg-type]
    while case.is_open:
        decision = decide(case, dataclasses.replace(what, observed_at=now), now=now, policy=DEFAULT_POLICY)
        assert not any(isinstance(action, StopJob) for action in decision.actions), decision.rule
        case, what = decision.incident, dataclasses.replace(what, new_signals=())
        rules.append(decision.rule)
        now += decision.look_again_in or timedelta(0)
    assert (rules[0], rules[-1]) == ("nan.watching", "nan.passed")
    assert case.loss.stretches == ()


@pytest.mark.parametrize("steps", [(100, 101, 102), (None, None, None)])
def test_three_printed_ones_in_a_run_without_a_monitor_are_believed(steps: tuple[int | None, ...]) -> None:
    news = tuple(printed(step, minute=index) for index, step in enumerate(steps))
    decision = look(incident(), seen(view(step=110), new_signals=news, checkpoints=Known(POINTS)))  # type: ignore[arg-type]
    assert decision.incident.is_poisoned


def test_one_that_the_heartbeat_bears_out_is_believed_at_once() -> None:
    what = view(step=103, loss_state="nan", loss_health="non_finite", onset_step=100)
    decision = look(incident(), seen(what, new_signals=(printed(100),), checkpoints=Known(POINTS)))  # type: ignore[arg-type]
    assert decision.incident.phase is Phase.STOPPING


@pytest.mark.parametrize("kind", [SignalKind.ALARM, SignalKind.TRAINING_LOG])
def test_one_that_a_later_finite_loss_refutes_is_none(kind: SignalKind) -> None:
    what = view(step=103, loss_state="finite", heartbeat_at=NOW)
    claim = signal(NAN, kind=kind, step=None, at=NOW - MINUTE)
    decision = look(incident(), seen(what, new_signals=(claim,), checkpoints=Known(POINTS)))
    assert (decision.rule, decision.incident.is_poisoned) == ("nan.watching", False)


def test_a_count_of_bad_values_of_a_run_without_a_heartbeat_is_believed() -> None:
    claim = signal(NAN, kind=SignalKind.ALARM, step=None)
    decision = look(incident(), seen(view(step=None), new_signals=(claim,), checkpoints=Known(POINTS)))
    assert decision.incident.is_poisoned
    assert isinstance(decision.incident.loss.onset_step, Unknown)


def test_a_run_that_printed_a_nan_and_died_is_not_resumed_behind_it() -> None:
    what = view(AttemptStatus.FAILED, step=103, failure_reason="AlgorithmError: exit code 1")
    decision = look(incident(), seen(what, new_signals=(printed(99),), checkpoints=Known(POINTS)))  # type: ignore[arg-type]
    (start,) = [action for action in decision.actions if isinstance(action, ResubmitJob)]
    assert start.resume_step == Known(97)


def test_a_new_attempt_is_not_stopped_for_one_printed_nan() -> None:
    claim = signal(NAN, kind=SignalKind.TRAINING_LOG, attempt="lm-r2", step=95)
    case = incident(Phase.VERIFYING, FaultClass.SOFTWARE_CRASH)
    decision = look(
        case, seen(view(name="lm-r2", step=96, loss_state="finite", heartbeat_at=NOW), new_signals=(claim,))
    )
    assert decision.incident.phase is Phase.VERIFYING


@pytest.mark.parametrize("phase", [Phase.OPEN, Phase.CHECKPOINTING, Phase.STOPPING, Phase.VERIFYING])
def test_a_run_that_completes_poisoned_has_not_recovered(phase: Phase) -> None:
    name = "lm-r2" if phase is Phase.VERIFYING else "lm"
    case = incident(phase, NAN, onset_attempt=name, onset_step=Known(99))
    decision = look(case, seen(view(AttemptStatus.COMPLETED, name=name)))
    assert (decision.rule, decision.incident.phase) == ("ended.completed_poisoned", Phase.HANDED_OVER)
    well = look(incident(phase, FaultClass.HANG), seen(view(AttemptStatus.COMPLETED, name=name, work="finished")))
    assert well.incident.phase in (Phase.RECOVERED, Phase.STOPPED)


def test_the_newest_good_step_stands_for_an_onset_that_nothing_names_until_something_does() -> None:
    """Metrics count bad values and the heartbeats stand still: what was saved after the last one may yet be good."""
    counted = signal(NAN, kind=SignalKind.STATE_REREAD, step=None, source=SignalSource.SWEEP)
    old = view(step=54, loss_state="finite", loss_health="ok", heartbeat_at=NOW - 20 * MINUTE)
    first = look(incident(), seen(old, new_signals=(counted,), checkpoints=Known(POINTS))).incident
    assert (first.loss.onset_step, first.loss.is_onset_later) == (Known(54), True)
    assert [stretch.from_step for stretch in first.loss.stretches] == [53]
    now = view(step=150, loss_state="nan", loss_health="non_finite", onset_step=99)
    named = look(first, seen(now, checkpoints=Known(POINTS))).incident
    assert (named.loss.onset_step, named.loss.is_onset_later) == (Known(99), False)
    assert [stretch.from_step for stretch in named.loss.stretches] == [98]
