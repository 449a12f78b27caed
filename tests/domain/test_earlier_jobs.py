"""Which checkpoints of a run's earlier Jobs are on the line of the Job."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from chalicelib.domain.model.evidence import Stretch
from chalicelib.domain.model.job import Attempt
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import AttemptStatus, AttemptView, CheckpointView
from chalicelib.domain.resume.checkpoint_choice import attributed, marked_ahead_of_its_run
from chalicelib.domain.resume.earlier_jobs import (
    Lived,
    begun_from,
    dated_by_its_begin,
    first_step_of,
    is_before,
    marked_bad_steps,
    numbered_before,
    on_its_line,
)
from chalicelib.domain.resume.resume_point import mark_abandoned

T0 = datetime(2031, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LIVED = {"a": Lived(began_at=T0, ended_at=None)}


def attempt(name: str, number: int, minute: int = 0, **more: object) -> Attempt:
    return Attempt(job_id=name[0], number=number, name=name, submitted_at=T0 + timedelta(minutes=minute), **more)  # type: ignore[arg-type]


def saved(step: int, by: str) -> CheckpointView:
    return CheckpointView(
        step=step, root=f"s3://b/{step}", manifest=f"m{step}", attempt=by, kind="periodic", saved_at=T0
    )


def test_each_earlier_attempt_comes_before_the_first_attempt_of_the_job() -> None:
    known = {"a": Lived(began_at=None, ended_at=None), "b": Lived(began_at=T0 + 20 * MINUTE, ended_at=None)}
    earlier = numbered_before([attempt("b", 1, 20), attempt("a-r2", 2, 10), attempt("a", 1)], known)
    assert [(attempt.name, attempt.number) for attempt in earlier] == [("a", -3), ("a-r2", -2), ("b", -1)]


def test_a_link_that_waited_in_the_queue_comes_after_each_attempt_of_the_job_that_trained_before_it() -> None:
    """It was submitted with the first one, which was started again meanwhile, from a step below the link's own."""
    known = {"a": Lived(began_at=T0, ended_at=T0 + 40 * MINUTE), "b": Lived(began_at=T0 + 41 * MINUTE, ended_at=None)}
    again = attempt("a-r2", 2, 20, resume_step=Known(30))
    earlier = numbered_before([attempt("b", 1, 1), again, attempt("a", 1)], known)
    assert [attempt.name for attempt in earlier] == ["a", "a-r2", "b"]
    (link_s,) = mark_abandoned((saved(60, "b"),), earlier)
    assert not link_s.problems


def test_a_plain_file_from_before_a_link_began_to_train_is_none_of_the_link_s() -> None:
    """It was submitted with the one before it, and waited for that."""
    before, link = attempt("a", 1), (attempt("b", 1), attempt("b-r2", 2, 50))
    dated = dated_by_its_begin(link, Lived(began_at=T0 + 41 * MINUTE, ended_at=None))
    assert [item.submitted_at - T0 for item in dated] == [41 * MINUTE, 50 * MINUTE]
    in_order = (replace(before, number=0), *dated)
    writers = [attributed(57, [T0 + minute * MINUTE], in_order)[0] for minute in (5, 42, 51)]
    assert writers == ["a", "b", "b-r2"]
    assert dated_by_its_begin(link, Lived(began_at=None, ended_at=None)) == link


def test_a_plain_file_ahead_of_what_its_attempt_signs_later_may_be_another_run_s() -> None:
    def at(checkpoint: CheckpointView, minute: int, **changes: str) -> CheckpointView:
        return replace(checkpoint, saved_at=T0 + minute * MINUTE, **changes)  # type: ignore[arg-type]

    plain = at(saved(68, "a"), 5, manifest="")
    found = (
        plain,
        replace(plain, step=25, root="s3://b/25"),
        replace(plain, saved_at=T0 + 9 * MINUTE, root="s3://b/newest"),
        replace(plain, attempt="b", root="s3://b/b"),
        at(saved(30, "a"), 8),
        at(saved(10, "a"), 2),
    )
    marked = {checkpoint.root: bool(checkpoint.problems) for checkpoint in marked_ahead_of_its_run(found)}
    assert marked == {found[0].root: True, **{checkpoint.root: False for checkpoint in found[1:]}}


def test_the_job_has_their_steps_up_to_where_it_began() -> None:
    found = (saved(90, "c"), saved(61, "a"), saved(60, "a"), saved(50, "a"), saved(70, "stranger"))
    assert [checkpoint.step for checkpoint in on_its_line(found, {"a": Known(60)})] == [90, 60, 50, 70]
    assert [checkpoint.step for checkpoint in on_its_line(found, {"a": Known(1)})] == [90, 70]


def test_the_newest_attempt_that_chose_its_own_beginning_tells_what_the_job_continues() -> None:
    found = (saved(60, "a"), saved(50, "a"), saved(40, "c"))
    first, by_hand = attempt("c", 1, first_step=Known(1)), attempt("c2", 2, 1, first_step=Known(61))
    planned = attempt("c-r3", 3, 2, first_step=Known(41), resume_step=Known(40))
    assert begun_from((first, by_hand, planned), found, None) == (by_hand, found[0])
    assert begun_from((first, planned), found, None) is None
    assert begun_from((first, by_hand), (*found, saved(60, "c")), None) is None
    assert begun_from((first, attempt("c2", 2, -1, first_step=Known(61))), found, None) is None  # saved since


def test_what_trained_before_a_waiting_link_is_earlier_though_it_was_submitted_later() -> None:
    link, second = (Lived(began_at=T0 + timedelta(minutes=minute), ended_at=None) for minute in (30, 10))
    assert is_before(second, link, was_created_before=False)
    assert not is_before(link, second, was_created_before=True)
    waits = Lived(began_at=None, ended_at=None)
    assert [is_before(second, waits, was_created_before=created) for created in (True, False)] == [True, False]


def test_where_no_step_is_known_none_of_theirs_can_be_used() -> None:
    found = on_its_line((saved(60, "a"), saved(5, "c")), {"a": Unknown("no heartbeat")})
    assert [bool(checkpoint.problems) for checkpoint in found] == [True, False]


def test_what_was_saved_while_an_earlier_jobs_loss_was_bad_has_a_problem() -> None:
    """Its own Incident knows; the Job that continues it has none of its own that would."""
    bad = (Stretch(attempt="a", from_step=60, to_step=80), Stretch(attempt="b", from_step=90))
    found = (saved(90, "b"), saved(80, "a"), saved(79, "a"), saved(60, "a"), saved(59, "a"), saved(89, "b"))
    assert [checkpoint.step for checkpoint in marked_bad_steps(found, bad) if checkpoint.problems] == [90, 79, 60]


def test_the_first_step_is_that_of_the_first_attempt_that_made_one() -> None:
    own = (attempt("c", 1), attempt("c-r2", 2, first_step=Known(61)), attempt("c-r3", 3, first_step=Known(81)))
    assert first_step_of(own, None) == Known(61)
    seen = AttemptView(name="c", status=AttemptStatus.FAILED, first_step=Known(41))
    assert first_step_of(own, seen) == Known(41)
    assert isinstance(first_step_of(own[:1], None), Unknown)


def test_a_later_attempt_that_went_back_leaves_the_earlier_jobs_line_too() -> None:
    attempts = (*numbered_before([attempt("a", 1)], LIVED), attempt("c", 1), attempt("c-r2", 2, resume_step=Known(40)))
    marked = mark_abandoned((saved(60, "a"), saved(40, "a")), attempts)
    assert [bool(checkpoint.problems) for checkpoint in marked] == [True, False]


def test_an_attempt_that_ended_while_it_started_has_made_no_step() -> None:
    began = AttemptView(name="a", status=AttemptStatus.STOPPED, work="startup", heartbeat_at=T0, ended_at=T0)
    assert began.made_no_step
    for changes in (
        {"work": "stalled"},
        {"last_step": Known(3)},
        {"heartbeat_at": None},
        {"ended_at": T0 + timedelta(minutes=5)},
        {"status": AttemptStatus.RUNNING},
    ):
        assert not replace(began, **changes).made_no_step, changes  # type: ignore[arg-type]
