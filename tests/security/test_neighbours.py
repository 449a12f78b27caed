"""Whoever may start training jobs under a role of its own takes over no run of another role."""

from dataclasses import replace

from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.domain.model.signal import SignalKind
from chalicelib.services.reporting.outcome import OutcomeKind
from rekindle.protocol.signals import FaultClass
from tests.services.world import JOB, World

NEIGHBOUR = "arn:aws:iam::123456789012:role/neighbour"


def test_a_run_tagged_as_another_roles_job_is_protected_as_its_own_and_takes_nothing() -> None:
    w = World()
    w.tick(60)
    w.scheduler.put("evil", policy_name="default", job_id=JOB, mailbox="s3://box/lm", user=NEIGHBOUR)
    w.intake.receive(replace(w.say(SignalKind.STALL, "evil", FaultClass.HANG), job_id=None))
    assert w.registry.get(JOB).current_attempt == JOB
    own = w.registry.get("evil")
    assert own.mailbox == ""
    assert len(own.limits) == 2


def test_a_run_that_names_another_roles_mailbox_gets_none() -> None:
    w = World()
    w.scheduler.put("evil", policy_name="default", mailbox="s3://box/lm/", user=NEIGHBOUR)
    w.intake.receive(replace(w.say(SignalKind.STALL, "evil", FaultClass.HANG), job_id=None))
    assert w.registry.get("evil").mailbox == ""
    assert w.registry.get(JOB).mailbox == "s3://box/lm"


def test_a_run_of_another_role_is_not_taken_for_the_one_that_a_person_resubmitted() -> None:
    w = World()
    w.fail(JOB, "boom")
    w.deliver_all()
    assert w.registry.get(JOB).open_incident is not None
    w.scheduler.put("evil", policy_name="default", mailbox="s3://box/lm", user=NEIGHBOUR)
    outcome = w.intake.receive(replace(w.say(SignalKind.STALL, "evil", FaultClass.HANG), job_id=None))
    assert (outcome.what, outcome.job_id) == (OutcomeKind.OPENED, "evil")


def test_the_same_role_may_resubmit_by_hand() -> None:
    w = World()
    w.tick(60)
    w.scheduler.put(JOB, AttemptStatus.STOPPED)
    w.scheduler.put("by-hand", policy_name="default", job_id=JOB, mailbox="s3://box/lm")
    w.intake.receive(w.say(SignalKind.MONITOR_STARTED, "by-hand", None))
    assert w.registry.get(JOB).current_attempt == "by-hand"
