"""The owner's bill: what a broken service costs is on it, and the service as it is stays within its bounds."""

from __future__ import annotations

from collections import Counter

from chalicelib.domain.model.action import Done, Notify
from simulation.judging.bill import ROWS, Bill, beyond_bounds
from simulation.judging.excuses import EXCUSES
from simulation.play import play
from simulation.stages.world import World
from simulation.stories.story import PersonAction, SourceFault, Trouble
from tests.proving import broken
from tests.proving.test_judge import CRASH, HANG, story

LONG = story(CRASH, steps=None)


def test_a_run_that_is_left_to_people_although_a_new_attempt_gets_over_it_is_on_the_bill() -> None:
    assert play(LONG).bill.curable_left.total() == 0
    bill = play(LONG, broken=broken.nothing_is_ever_resubmitted).bill
    assert (bill.curable, bill.curable_left) == (1, Counter({"dead, resubmit.refused": 1}))


def test_hours_without_a_word_are_on_the_bill_until_people_are_told() -> None:
    bill = play(LONG, broken=broken.capacity_is_waited_for_without_end).bill
    (cause,) = bill.unsaid_h
    assert cause == "dead, resubmitting"
    gpus = 4 * 8
    assert 0 < bill.unsaid_h[cause] <= 10 / 60 * gpus, "a warning comes after a quarter of an hour (domain/run/down.py)"


def test_an_attempt_that_could_have_saved_before_it_was_stopped_is_on_the_bill() -> None:
    leaves = story(Trouble(kind="node_leaves", step=42, after_s=7200.0), platform="slurm", instances=2)
    assert sum(play(leaves).bill.unsaved_h.values()) == 0
    assert sum(play(leaves, broken=broken.a_run_is_stopped_for_a_notice).bill.unsaved_h.values()) > 0
    assert sum(play(story(HANG)).bill.unsaved_h.values()) == 0, "one that stands still cannot save"


def test_a_second_attempt_is_not_on_the_bill_while_sagemaker_refuses_to_say_whose_it_is() -> None:
    retried = PersonAction(what="retry", when="start", delay_s=1200.0)
    away = SourceFault(kind="sagemaker_away", from_s=462.0, to_s=4062.0)
    seen, hidden = story(actions=(retried,)), story(actions=(retried,), source_faults=(away,))
    assert play(hidden).bill.trained_h > 2 * play(seen).bill.trained_h, "two train at once for an hour"
    assert not play(hidden).bill.doubled_unsaid_h


def test_bounds_say_something_only_of_enough_incidents() -> None:
    bill = Bill(incidents=10, curable=10, curable_left=Counter({"dead": 10}))
    assert beyond_bounds(bill) == ()
    many = Bill()
    for _ in range(20):
        many.add(bill)
    assert [row.name for row in beyond_bounds(many)] == ["curable_left"]
    assert many.curable_left == Counter({"dead": 200})


def test_each_row_and_each_excuse_has_a_name_of_its_own() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert len({excuse.name for excuse in EXCUSES}) == len(EXCUSES)


def test_an_excuse_that_is_a_delay_expires() -> None:
    """An Incident that waits and tells nobody is no watch."""

    def says_nothing(world: World) -> None:
        broken.capacity_is_waited_for_without_end(world)
        broken.performed(world, Notify, Done.DONE)

    assert "dead_unwatched" in play(LONG, broken=says_nothing).kinds
