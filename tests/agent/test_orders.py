"""Orders come at least once, late, broken or for somebody else; Slurm answers, does not, or did without saying so."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from botocore.exceptions import EndpointConnectionError

from localcloud.cloud import Cloud
from rekindle.protocol.cluster.documents import JobSpec, SlurmState
from rekindle.protocol.cluster.names import cluster_prefix
from rekindle.protocol.cluster.orders import Order, Outcome, Verb
from rekindle.slurm_agent.publishing.publisher import HEARTBEAT
from tests.agent.ctld import job
from tests.agent.world import BUCKET, World

AWAY = EndpointConnectionError(endpoint_url="https://sqs.us-west-2.amazonaws.com")


def cancel(world: World, **changes: object) -> Order:
    return world.order(Verb.CANCEL, **({"attempt": "slurm.lab.7", "slurm_job": 7} | changes))


def submit(world: World, **changes: object) -> Order:
    names = {"attempt": "slurm.lab.7", "new_attempt": "slurm.lab.7-a2", "spec": world.spec(), "slurm_job": 7}
    return world.order(Verb.SUBMIT, **(names | changes))


def test_an_order_is_carried_out_once_answered_on_whiteboard_and_bus_and_its_message_deleted(world: World) -> None:
    world.ctld.put(job())
    answer = world.carry_out(cancel(world, incident_id="inc-1"))
    assert answer.outcome is Outcome.DONE
    assert (answer.slurm_job, answer.attempt, answer.incident_id) == (7, "slurm.lab.7", "inc-1")
    assert world.ctld.commands == ["cancel 7"]
    assert [result["token"] for result in world.told()] == ["order-1"]
    assert world.left() == 0


def test_an_order_delivered_again_is_answered_again_and_not_run_again(world: World) -> None:
    world.ctld.put(job())
    order = cancel(world)
    first = world.carry_out(order)
    world.ctld.put(job())  # as if somebody had started it again: a second run of the order would harm
    world.send(order)
    world.send(order)
    world.run_once()
    assert world.ctld.commands == ["cancel 7"]
    assert world.answer() == first
    assert [result["outcome"] for result in world.told()] == ["done", "done", "done"]
    assert world.left() == 0


class Sleeper:
    """The lease of an agent whose machine stood still for an hour, its clock with it: S3's answer tells."""

    epoch, others, problem, previous = 1, (), "", None

    def __init__(self, world: World) -> None:
        self._world = world

    def left_s(self) -> float:
        return 60.0

    def begin(self, token: str, at: datetime) -> None:
        self._world.clock.forward(3600.0)


def test_an_order_that_expired_while_the_machine_stood_still_is_not_begun(world: World) -> None:
    world.ctld.put(job())
    world.start(Sleeper(world))
    order = cancel(world)
    world.write_down(order)
    world.agent.executor.take(order.to_json().decode())
    world.agent.executor.work()
    entry = world.agent.journal.find(order.token)
    assert entry is not None
    assert entry.answer is not None
    assert entry.answer.outcome is Outcome.REFUSED
    assert "expired" in entry.answer.detail
    assert world.ctld.commands == []


def test_an_order_that_is_late_is_refused_and_never_run(world: World) -> None:
    world.ctld.put(job())
    answer = world.carry_out(cancel(world, expires_at=world.clock.now()))
    assert answer.outcome is Outcome.REFUSED
    assert "expired" in answer.detail
    assert world.ctld.commands == []


def test_an_order_for_another_cluster_is_refused_under_our_own_name(world: World) -> None:
    world.ctld.put(job())
    answer = world.carry_out(cancel(world, cluster="other"))
    assert answer.outcome is Outcome.REFUSED
    assert answer.cluster == "lab"
    assert world.read("clusters/other/answers/order-1.json") is None
    assert world.ctld.commands == []


@pytest.mark.parametrize(
    "names", [{"attempt": "slurm.other.7"}, {"attempt": "slurm.lab.7", "new_attempt": "slurm.other.7.r1"}]
)
def test_an_order_about_another_clusters_run_does_nothing_to_the_job_of_the_same_number(
    world: World, names: dict[str, str]
) -> None:
    world.ctld.put(job())
    answer = world.carry_out(cancel(world, **names))
    assert answer.outcome is Outcome.REFUSED
    assert "another cluster" in answer.detail
    assert world.ctld.commands == []


def test_another_order_under_a_used_token_is_refused_and_the_first_ones_answer_stands(world: World) -> None:
    world.ctld.put(job())
    world.ctld.put(job(8))
    first = world.carry_out(cancel(world))
    world.send(world.order(Verb.CANCEL, attempt="slurm.lab.8", slurm_job=8))
    world.run_once()
    assert world.ctld.commands == ["cancel 7"]
    assert world.answer() == first
    assert [result["outcome"] for result in world.told()] == ["done", "refused"]
    assert world.left() == 0


@pytest.mark.parametrize(
    ("body", "is_told"),
    [
        ("", False),
        ("not json", False),
        ("[1]", False),
        ("{" * 3000, False),
        (json.dumps({"v": 1, "token": "../x", "verb": "cancel"}), False),
        (json.dumps({"v": 1, "token": "order-1", "verb": ["cancel"]}), False),
        (json.dumps({"v": 1, "token": "order-1", "verb": "explode"}), False),
        (json.dumps({"v": 2, "token": "order-1", "verb": "cancel"}), True),
        (json.dumps({"v": 1, "token": "order-1", "verb": "drain", "node": "a;reboot"}), True),
    ],
)
def test_a_message_that_is_no_order_is_put_aside_and_told_where_it_can_be(
    world: World, body: str, is_told: bool
) -> None:
    world.send(body or " ")
    world.run_once()
    assert world.left() == 0
    assert world.quarantined() == [body or " "]
    answer = world.answer()
    assert (answer is not None) is is_told
    assert answer is None or (answer.outcome is Outcome.REFUSED and answer.detail.startswith("malformed"))
    world.clock.forward(HEARTBEAT.total_seconds())
    world.run_once()
    heartbeat = world.heartbeat()
    assert heartbeat is not None
    assert any("no order" in line for line in heartbeat.problems)


def test_a_broken_message_under_the_token_of_an_order_does_not_touch_its_answer(world: World) -> None:
    world.ctld.put(job())
    first = world.carry_out(cancel(world))
    world.send(json.dumps({"v": 1, "token": "order-1", "verb": "cancel"}))
    world.run_once()
    assert world.answer() == first


def test_a_submission_whose_answer_was_lost_is_found_by_its_name_and_not_made_again(world: World) -> None:
    world.ctld.put(job(state=SlurmState.FAILED))
    world.ctld.loses_answers = 1
    answer = world.carry_out(submit(world))
    assert answer.outcome is Outcome.DONE
    assert answer.slurm_job == world.ctld.submitted["slurm.lab.7-a2"]
    assert world.ctld.commands == ["submit slurm.lab.7-a2", "release 8"]


@pytest.mark.parametrize("there", [None, JobSpec(script="#!/bin/sh\nforged\n").to_json()], ids=["missing", "in S3"])
def test_only_what_is_kept_on_the_head_node_is_submitted(world: World, there: bytes | None) -> None:
    name = hashlib.sha256(there or b"").hexdigest()
    if there is not None:
        world.cloud.client("s3").put_object(Bucket=BUCKET, Key=f"{cluster_prefix('lab')}specs/{name}.json", Body=there)
    answer = world.carry_out(submit(world, spec=name))
    assert (answer.outcome, "not kept" in answer.detail) == (Outcome.REFUSED, True), answer
    assert world.ctld.commands == []


@pytest.mark.parametrize("loses", [True, False], ids=["after the command", "before the command"])
def test_an_agent_killed_around_a_submission_submits_exactly_once(world: World, loses: bool) -> None:
    """Killed between sbatch and the answer, or between the journal and sbatch."""
    world.ctld.put(job(state=SlurmState.FAILED))
    order = submit(world)
    world.send(order)
    world.agent.orders.poll(0)
    world.agent.journal.begin(order.token, now=world.clock.now())
    if loses:
        world.ctld.submit(None, order)  # type: ignore[arg-type]  # the child did it, and nobody was there to hear
    world.start()
    answer = world.carry_out(order)
    assert answer.outcome is Outcome.DONE
    assert world.ctld.commands == ["submit slurm.lab.7-a2", "release 8"]
    assert answer.slurm_job == world.ctld.submitted["slurm.lab.7-a2"]


@pytest.mark.parametrize("loses", ["submit", "release"])
def test_a_copy_that_waits_held_after_a_lost_answer_is_compared_and_let_go_once(world: World, loses: str) -> None:
    world.ctld.put(job(state=SlurmState.FAILED))
    world.ctld.loses_answers = 1 if loses == "submit" else 2
    assert world.carry_out(submit(world)).outcome is Outcome.DONE
    assert world.ctld.commands.count("submit slurm.lab.7-a2") == 1
    assert not world.ctld.jobs[8].held


@pytest.mark.parametrize("kills", [None, "held", "cancelled"])
def test_a_copy_that_is_not_the_same_job_is_cancelled_and_told_also_after_a_crash(
    world: World, kills: str | None
) -> None:
    """Killed while the copy waits held, or after it was cancelled and before the answer."""
    world.ctld.put(job(state=SlurmState.FAILED))
    world.ctld.differs = ("TresPerTask was 'gres/gpu=2', and would be nothing",)
    order = submit(world)
    if kills is not None:
        world.send(order)
        world.agent.orders.poll(0)
        world.agent.journal.begin(order.token, now=world.clock.now())
        copy = world.ctld.submit(None, order)  # type: ignore[arg-type]  # as above
        if kills == "cancelled":
            world.ctld.cancel(copy)
        world.start()
    answer = world.carry_out(order)
    assert answer.outcome is Outcome.REFUSED
    assert "TresPerTask was 'gres/gpu=2'" in answer.detail
    assert world.ctld.commands == ["submit slurm.lab.7-a2", "cancel 8"]
    assert world.agent.journal.is_unproven("slurm.lab.7-a2")


def test_a_held_copy_whose_order_is_known_to_no_journal_is_compared_before_it_is_let_go(world: World) -> None:
    world.ctld.put(job(state=SlurmState.FAILED))
    order = submit(world)
    world.ctld.submit(None, order)  # type: ignore[arg-type]  # by an agent whose state directory is lost
    world.ctld.differs = ("JobName was 'a', and would be 'b'",)
    assert world.carry_out(order).outcome is Outcome.REFUSED
    assert world.ctld.commands == ["submit slurm.lab.7-a2", "cancel 8"]


def test_a_copy_counts_as_an_attempt_once_it_was_let_go(world: World) -> None:
    world.ctld.put(job(state=SlurmState.FAILED))
    assert world.carry_out(submit(world)).outcome is Outcome.DONE
    assert not world.agent.journal.is_unproven("slurm.lab.7-a2")


def test_a_submission_begun_by_an_agent_that_was_away_for_long_is_not_guessed_about(world: World) -> None:
    """The job may have run, ended, and been forgotten by slurmctld."""
    world.ctld.put(job(state=SlurmState.FAILED))
    order = submit(world)
    world.send(order)
    world.agent.orders.poll(0)
    world.agent.journal.begin(order.token, now=world.clock.now())
    world.clock.forward(600)
    world.start()
    answer = world.carry_out(order)
    assert answer.outcome is Outcome.FAILED
    assert world.ctld.commands == []


def test_even_without_its_journal_the_agent_does_not_submit_twice(world: World, tmp_path: Path) -> None:
    """A head node that was replaced while the order was in the queue."""
    world.ctld.put(job(state=SlurmState.FAILED))
    order = submit(world)
    first = world.carry_out(order)
    world.settings = world.settings.read(
        {"REKINDLE_BUCKET": world.settings.bucket, "REKINDLE_CLUSTER": "lab"}, {"state_dir": str(tmp_path / "new")}
    )
    (tmp_path / "new").mkdir()
    world.start()
    world.send(order)
    world.run_once()
    again = world.answer()
    assert world.ctld.commands == ["submit slurm.lab.7-a2", "release 8"]
    assert again is not None
    assert (again.outcome, again.slurm_job) == (Outcome.ALREADY, first.slurm_job)


def test_who_may_only_send_has_nothing_submitted(world: World) -> None:
    """The service has written down what it orders; a message alone is anybody's."""
    world.ctld.put(job(state=SlurmState.FAILED))
    order = submit(world)
    world.send(order.to_json().decode())
    for _ in range(5):
        world.run_once()
    answer = world.answer()
    assert answer is not None
    assert (answer.outcome, world.ctld.commands) == (Outcome.REFUSED, [])
    changed = replace(order, token="order-2", environment={"REKINDLE_RESUME_URI": "s3://evil/pickle"})
    world.write_down(replace(order, token="order-2"))
    world.send(changed.to_json().decode())
    for _ in range(5):
        world.run_once()
    answer = world.answer("order-2")
    assert answer is not None
    assert (answer.outcome, world.ctld.commands) == (Outcome.REFUSED, [])
    assert "another order" in answer.detail


def test_an_agent_killed_after_the_answer_was_kept_tells_it_at_the_next_start(world: World) -> None:
    world.ctld.put(job())
    world.send(cancel(world))
    world.agent.orders.poll(0)
    world.agent.executor.work()
    assert world.answer() is None
    world.start()
    world.agent.publisher.run_once()
    answer = world.answer()
    assert answer is not None
    assert answer.outcome is Outcome.DONE
    assert world.ctld.commands == ["cancel 7"]


def test_while_slurmctld_is_away_an_order_waits_and_is_carried_out_when_it_is_back(world: World) -> None:
    world.ctld.put(job())
    world.ctld.is_away = True
    world.send(cancel(world))
    for _ in range(10):
        world.run_once()
        world.agent.watch.run_once()
        world.clock.forward(60)
    world.run_once()
    assert world.answer() is None
    heartbeat = world.heartbeat()
    assert heartbeat is not None
    assert any("slurm: Unable to contact" in line for line in heartbeat.problems)
    assert heartbeat.read_at is None
    world.ctld.is_away = False
    world.clock.forward(60)
    world.run_once()
    answer = world.answer()
    assert answer is not None
    assert answer.outcome is Outcome.DONE
    assert world.ctld.commands == ["cancel 7"]


@pytest.mark.parametrize("minutes", [5, 600], ids=["until it expires", "for so many tries"])
def test_an_order_that_slurm_never_answers_fails_in_the_end(world: World, minutes: int) -> None:
    world.ctld.put(job())
    world.ctld.is_away = True
    order = cancel(world, expires_at=world.clock.now() + timedelta(minutes=minutes))
    answer = world.carry_out(order)
    assert answer.outcome in {Outcome.FAILED, Outcome.REFUSED}
    assert world.ctld.commands == []
    assert world.clock.now() < order.issued_at + timedelta(hours=2)


def test_what_slurm_refuses_is_refused_with_its_words(world: World) -> None:
    world.ctld.put_node("node1")
    world.ctld.refuses = "Access/permission denied"
    answer = world.carry_out(world.order(Verb.DRAIN, node="node1"))
    assert answer.outcome is Outcome.REFUSED
    assert "permission denied" in answer.detail


def test_a_clock_that_is_set_back_does_not_put_an_order_off(world: World) -> None:
    world.ctld.put(job(state=SlurmState.COMPLETING))
    world.send(cancel(world))
    world.run_once()
    world.ctld.put(job())
    world.clock.forward(-7200)
    world.run_once()
    assert world.ctld.commands == ["cancel 7"]


def test_two_orders_about_one_job_are_carried_out_one_after_the_other(world: World) -> None:
    world.ctld.put(job(state=SlurmState.COMPLETING))
    hold = world.order(Verb.HOLD, "a-hold", attempt="slurm.lab.7", slurm_job=7)
    requeue = world.order(Verb.REQUEUE, "b-requeue", attempt="slurm.lab.7", slurm_job=7, new_attempt="slurm.lab.7.r1")
    world.send(hold)
    world.run_once()
    world.send(requeue)
    world.run_once()
    assert world.answer("b-requeue") is None
    world.ctld.put(job())
    world.clock.forward(5)
    world.run_once()
    assert world.ctld.commands == ["requeue_hold 7", "release 7", "start_now 7"]
    held, started = world.answer("a-hold"), world.answer("b-requeue")
    assert held is not None
    assert started is not None
    assert (held.outcome, started.outcome) == (Outcome.DONE, Outcome.DONE)


@pytest.mark.parametrize(
    ("changes", "commands"),
    [
        ({}, ["exclude 7 n3", "release 7", "start_now 7"]),
        ({"reason": "job_requeued_in_held_state"}, ["exclude 7 n3", "release 7", "start_now 7"]),
        ({"reason": "JobHeldUser"}, []),  # a person holds it
        ({"reason": "JobHeldAdmin"}, []),
        ({"state": SlurmState.RUNNING, "held": False, "reason": ""}, []),
        ({"restart": 2}, []),  # a person has put it back into the queue once more
    ],
    ids=str,
)
def test_a_start_that_slurmctld_forgot_to_let_go(world: World, changes: dict[str, object], commands: list[str]) -> None:
    held = {"reason": "job requeued in held state", "state": SlurmState.PENDING, "held": True, "restart": 1}
    requeue_then(world)
    world.ctld.put(job(**(held | changes)))  # type: ignore[arg-type]
    for _ in range(3):
        now = world.ctld.jobs[7]
        world.ctld.written[now.attempt] = now
        world.run_once()
    assert world.ctld.commands == commands


def test_a_start_that_slurmctld_forgot_to_let_go_is_left_alone_after_a_while_and_beside_another(
    world: World,
) -> None:
    requeue_then(world)
    held = job(restart=1, state=SlurmState.PENDING, held=True, reason="job requeued in held state", mailbox="s3://b/m")
    world.ctld.put(held)
    world.ctld.written[held.attempt] = held
    world.ctld.written["slurm.lab.7"] = job(mailbox="s3://b/m")
    world.ctld.put(job(8, mailbox="s3://b/m"))  # its user has started the run again
    world.run_once()
    assert world.ctld.commands == []
    del world.ctld.jobs[8]
    world.ctld.is_away = True
    world.run_once()
    world.ctld.is_away = False
    world.clock.forward(16 * 60)  # a person may have found it held, and count on it
    world.run_once()
    assert world.ctld.commands == []


def test_a_start_that_a_later_order_holds_is_not_let_go_again(world: World) -> None:
    requeue_then(world)
    held = job(restart=1, state=SlurmState.PENDING, held=True, reason="job requeued in held state")
    world.ctld.put(held)
    world.ctld.written[held.attempt] = held
    world.send(world.order(Verb.HOLD, "hold-1", attempt=held.attempt, slurm_job=7))
    world.agent.orders.poll(0)
    world.clock.forward(1)
    world.run_once()
    world.ctld.commands.clear()
    world.run_once()
    assert world.ctld.commands == []


def test_a_fault_in_letting_a_start_go_again_keeps_no_order_from_being_carried_out(world: World) -> None:
    requeue_then(world)
    held = job(restart=1, state=SlurmState.PENDING, held=True, reason="job requeued in held state")
    world.ctld.written[held.attempt] = held
    world.ctld.jobs[7] = "no job at all"  # type: ignore[assignment]
    world.ctld.put(job(8))
    answer = world.carry_out(world.order(Verb.CANCEL, "cancel-8", attempt="slurm.lab.8", slurm_job=8))
    assert answer.outcome is Outcome.DONE


def requeue_then(world: World) -> None:
    """An order to start job 7 again without node n3 was carried out."""
    world.ctld.put(job(state=SlurmState.FAILED))
    names = {"attempt": "slurm.lab.7", "slurm_job": 7, "new_attempt": "slurm.lab.7.r1"}
    assert world.carry_out(world.order(Verb.REQUEUE, **names, exclude=("n3",))).outcome is Outcome.DONE
    world.ctld.commands.clear()


def test_a_fault_in_one_order_ends_neither_the_loop_nor_the_others(world: World) -> None:
    world.ctld.put(job(8))
    world.ctld.jobs[7] = "no job at all"  # type: ignore[assignment]
    world.send(cancel(world))
    world.send(world.order(Verb.CANCEL, "order-2", attempt="slurm.lab.8", slurm_job=8))
    for _ in range(3):
        world.run_once()
    first, second = world.answer(), world.answer("order-2")
    assert first is not None
    assert second is not None
    assert (first.outcome, second.outcome) == (Outcome.FAILED, Outcome.DONE)
    assert "internal error" in first.detail


def test_while_aws_is_away_orders_go_on_and_everything_is_told_when_it_is_back(world: World) -> None:
    world.ctld.put(job())
    world.send(cancel(world))
    world.agent.orders.poll(0)
    world.cut(AWAY)
    world.agent.executor.work()
    for _ in range(5):
        assert world.agent.orders.poll(0) is False
        world.agent.publisher.run_once()
        world.clock.forward(60)
    assert world.ctld.commands == ["cancel 7"]
    world.cut(None)
    world.run_once()
    answer = world.answer()
    assert answer is not None
    assert answer.outcome is Outcome.DONE
    assert world.left() == 0


def test_without_a_queue_the_agent_says_that_it_is_there_until_it_has_one(cloud: Cloud, tmp_path: Path) -> None:
    world = World(cloud, tmp_path / "state", has_queue=False)
    world.agent.announce()
    for _ in range(3):
        assert world.agent.orders.poll(0) is False
        world.agent.publisher.run_once()
        world.clock.forward(61)
    started = world.told("Rekindle Agent Started")
    assert len(started) == 4
    assert all(one["cluster"] == "lab" and one["v"] == 1 for one in started)
    assert any("queue" in line for line in world.agent.problems.lines())
    world.make_queue()
    world.ctld.put(job())
    assert world.carry_out(cancel(world)).outcome is Outcome.DONE
    assert world.agent.problems.lines() == ()
