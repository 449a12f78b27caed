"""A number is not a job: who submitted it, and when, says which one it is. And an agent that lost its memory."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from rekindle.protocol.cluster.documents import AttemptDoc, FollowedDoc, SlurmState, followed_key
from rekindle.protocol.cluster.orders import NEEDED, Order, Outcome, Signal, Verb
from rekindle.protocol.cluster.same_job import why_different
from rekindle.slurm_agent.base.ports import SlurmUnavailable
from rekindle.slurm_agent.orders.dispatch import OrderDispatcher
from rekindle.slurm_agent.orders.verbs import OrderTry
from rekindle.slurm_agent.reading.nodes import Settings, parse_settings
from rekindle.slurm_agent.reading.run import Unreadable
from rekindle.slurm_agent.watching.advice import numbering
from tests.agent_slurm.conftest import START, Head
from tests.agent_slurm.test_parsers import recorded

ALICE = {"JobID": "1", "UserName": "alice", "SubmitTime": "1795276000"}
BOB = {"JobID": "1", "UserName": "bob", "SubmitTime": "1795278000"}
LATER = ALICE | {"SubmitTime": "1795278000"}  # her own, but another one
OTHERS = pytest.mark.parametrize("other", [BOB, LATER], ids=["another user's", "another of the same user"])

TOUCHES: dict[Verb, dict[str, object]] = {
    Verb.CANCEL: {},
    Verb.HOLD: {},
    Verb.REQUEUE: {"new_attempt": "slurm.ml.1.r1"},
    Verb.SIGNAL: {"signal": Signal.USR1},
    Verb.EXCLUDE: {"exclude": ("node1",)},
    Verb.SHRINK: {"nodes_min": 1, "nodes_max": 2},
}


class NoSpecs:
    def get(self, sha256: str) -> None:
        raise LookupError(sha256)

    def check(self, order: Order) -> None:
        raise LookupError(order.token)


def obey(head: Head, verb: Verb, **more: object) -> tuple[Outcome, str]:
    order = Order(
        token="t",
        verb=verb,
        cluster="ml",
        issued_at=START,
        expires_at=START,
        attempt="slurm.ml.1",
        slurm_job=1,
        **more,  # type: ignore[arg-type]
    )
    order_try = OrderTry(order=order, begun_at=None, tried_at=None, now=START, begin=lambda: None)
    hands = OrderDispatcher(slurm=head.commands, specs=NoSpecs(), reread=None)  # type: ignore[arg-type]
    result = hands.carry_out(order_try)
    return result.outcome, result.detail


@OTHERS
@pytest.mark.parametrize("forgets", [False, True], ids=["remembered", "after a lost state directory"])
@pytest.mark.parametrize(("verb", "more"), TOUCHES.items())
@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "FAILED"])
def test_no_order_about_a_job_touches_another_one_that_has_its_number(
    head: Head, other: dict[str, str], forgets: bool, verb: Verb, more: dict[str, object], state: str
) -> None:
    head.fake.jobs([ALICE])
    head.look()
    if forgets:
        head.memory.all.clear()
        head.start()
    head.fake.jobs([other | {"State": state}])
    head.fake.steps({"1": 2})
    for _ in range(2):  # before the next look, and after it
        outcome, detail = obey(head, verb, **more)
        assert outcome is Outcome.REFUSED
        assert "another job has its number" in detail
        head.look()
    assert head.fake.calls() == []


@OTHERS
def test_a_job_under_a_known_number_is_not_taken_for_the_known_one_which_is_closed(
    head: Head, other: dict[str, str]
) -> None:
    head.fake.jobs([ALICE])
    head.look()
    head.fake.jobs([other])
    for _ in range(3):
        reading = head.look()
        assert any("another job has its number" in line and "FirstJobId" in line for line in reading.problems)
    closed = head.doc("slurm.ml.1")
    assert (closed.state, closed.user, closed.is_known) == (SlurmState.GONE, "alice", False)
    assert "another job has its number" in closed.detail
    assert not head.memory.items("watch/attempt/")


def test_an_unprotected_job_under_a_followed_number_is_left_alone(head: Head) -> None:
    head.fake.jobs([ALICE])
    head.look()
    head.fake.jobs([BOB | {"Comment": "(null)"}])
    head.look()
    assert head.doc("slurm.ml.1").state is SlurmState.GONE


def test_a_number_that_is_free_again_counts_for_the_job_that_has_it_next(head: Head) -> None:
    """The known job's document stays on the whiteboard: whoever has its number later is not that job."""
    head.fake.jobs([ALICE])
    head.look()
    head.fake.jobs([])
    head.look()
    assert head.doc("slurm.ml.1").state is SlurmState.GONE
    head.fake.jobs([BOB])
    reading = head.look()
    assert any("another job has its number" in line for line in reading.problems)
    assert head.doc("slurm.ml.1").user == "alice"


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING"])
def test_a_job_that_was_put_back_into_the_queue_is_the_same_job(head: Head, state: str) -> None:
    head.fake.jobs([ALICE])
    head.look()
    again = ALICE | {"RestartCnt": "1", "SubmitTime": "1795278000", "State": state, "EndTime": "2795278000"}
    head.fake.jobs([again])
    reading = head.look()
    assert [line for line in reading.problems if "number" in line] == []
    head.memory.all.clear()
    head.start()
    head.fake.jobs([again | {"RestartCnt": "2", "SubmitTime": "1795278900"}])
    reading = head.look()
    assert [line for line in reading.problems if "another" in line] == []


def test_an_agent_that_lost_its_memory_reads_back_what_it_followed_and_says_what_became_of_it(head: Head) -> None:
    held = {"State": "PENDING", "NodeList": "", "PriorityLong": "0", "Reason": "JobHeldUser"}
    head.fake.jobs([ALICE, {"JobID": "2"}, {"JobID": "3"} | held])
    head.look()
    assert FollowedDoc.from_json(head.board[followed_key("ml")]).attempts == ("slurm.ml.1", "slurm.ml.2", "slurm.ml.3")
    head.memory.all.clear()
    head.start()
    head.fake.jobs([ALICE, {"JobID": "3", "Comment": "somebody else's now"} | held])
    reading = head.look()
    assert head.doc("slurm.ml.2").state is SlurmState.GONE
    assert "3 starts were read back" in reading.problems[0]
    assert "1 of them are closed" in reading.problems[0]
    assert "1 wait held and can be released" in reading.problems[0]
    assert head.commands.job(3) is not None, "its comment was written over, and it is still ours"
    assert FollowedDoc.from_json(head.board[followed_key("ml")]).attempts == ("slurm.ml.1", "slurm.ml.3")
    head.start()
    assert not any("read back" in line for line in head.look().problems), "what was read back is remembered"


def test_while_the_list_cannot_be_read_nothing_is_looked_at_and_nothing_written_over(head: Head) -> None:
    head.fake.jobs([ALICE])
    head.look()
    before = dict(head.board)
    head.memory.all.clear()

    class Away(dict[str, bytes]):
        def get(self, *_: object) -> bytes:  # type: ignore[override]
            raise Unreadable("S3 is away")

    head.board = Away(before)
    head.start()
    head.fake.jobs([BOB])
    with pytest.raises(SlurmUnavailable):
        head.look()
    assert dict(head.board) == before


def test_the_first_agent_of_a_cluster_has_nothing_to_read_back(head: Head) -> None:
    head.fake.jobs([ALICE])
    assert head.look().problems == ()


def test_many_new_jobs_are_asked_about_together(head: Head) -> None:
    head.fake.jobs([{"JobID": str(number)} for number in range(100, 160)])
    head.look()
    head.memory.all.clear()
    del head.board[followed_key("ml")]
    head.start()
    head.fake.jobs([{"JobID": str(number), "SubmitTime": "1795278000"} for number in range(100, 160)])
    reading = head.look()
    others = [line for line in reading.problems if "another job has its number" not in line]
    assert (len(reading.problems), others) == (50, []), "as many as are told"


def test_what_the_numbering_of_jobs_is_advised_about() -> None:
    read = parse_settings(recorded("22.05-show-config.txt"))
    assert (read.first_job, read.next_job) == (1, 32)
    assert "FirstJobId is 1" in numbering(read, 31)
    assert "numbers have begun again" in numbering(read, 812)
    assert numbering(Settings(first_job=100_000, next_job=100_005), 100_004) == ""
    assert numbering(Settings(), 5) == ""
    federated = Settings(first_job=2, next_job=40)
    assert numbering(federated, (3 << 26) + 39) == ""
    assert "begun again" in numbering(federated, (3 << 26) + 41)


def test_numbers_that_have_begun_anew_are_a_problem_until_new_ones_are_reached(head: Head) -> None:
    head.fake.jobs([{"JobID": "500"}])
    head.fake.config(next_job=501)
    head.look()
    head.fake.jobs([])
    head.fake.config(next_job=3)
    head.now += timedelta(minutes=6)
    for _ in range(2):
        assert any("numbers have begun again" in line for line in head.look().problems)
    head.memory.all.clear()
    head.start()
    head.look()
    head.fake.config(next_job=501)
    head.now += timedelta(minutes=6)
    assert not any("begun again" in line for line in head.look().problems)


def test_a_job_that_was_submitted_since_the_numbers_were_read_is_no_sign_of_that(head: Head) -> None:
    head.fake.jobs([{"JobID": "500"}])
    head.fake.config(next_job=501)
    head.look()
    head.fake.jobs([{"JobID": "500"}, {"JobID": "501"}, {"JobID": "502"}])
    for _ in range(3):
        assert head.look().problems == ()


def test_every_order_about_a_job_asks_whose_number_it_is() -> None:
    """What is no part of the test above is about nodes, touches nothing, or makes a job."""
    about_nodes = {verb for verb, needed in NEEDED.items() if "node" in needed}
    assert set(Verb) - about_nodes - set(TOUCHES) == {Verb.SUBMIT}


@OTHERS
def test_what_waits_for_another_job_goes_on_to_wait_for_it(head: Head, other: dict[str, str]) -> None:
    """The copy takes the place of the known job, which is gone, and not of the one that has its number."""
    head.fake.jobs([ALICE])
    head.look()
    copy = {"JobID": "900", "UserName": "alice", "Comment": "rekindle,attempt=slurm.ml.1-a2", "State": "RUNNING"}
    waits = {"JobID": "10", "State": "PENDING", "Comment": "(null)", "Dependency": "afterany:1(unfulfilled)"}
    head.fake.jobs([other | {"State": "RUNNING"}, copy, waits])
    head.fake.steps({"900": 1})
    outcome, detail = obey(head, Verb.SUBMIT, new_attempt="slurm.ml.1-a2", spec="0" * 64)
    assert outcome is Outcome.ALREADY, detail
    assert head.fake.calls() == []


@pytest.mark.parametrize(("back", "is_the_same"), [(timedelta(minutes=10), True), (timedelta(days=1), False)])
def test_a_clock_that_was_set_back_before_a_requeue_makes_no_other_job(back: timedelta, is_the_same: bool) -> None:
    """SubmitTime is when the job was put back: by a clock that is behind the one of its submission."""
    known = AttemptDoc(
        attempt="slurm.ml.7", cluster="ml", slurm_job=7, restart=0, state=SlurmState.RUNNING, seen_at=START, user="a"
    )
    known = replace(known, submitted_at=START)
    assert bool(why_different(known, user="a", restart=1, submitted_at=START - back)) is not is_the_same
    assert why_different(known, user="b", restart=1, submitted_at=START - back)
    assert why_different(known, user="a", restart=0, submitted_at=START - back)
