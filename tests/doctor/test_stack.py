"""Rekindle's own stack and protected Jobs: each thing that can be wrong is told, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.doctor.base.facts import Missing, NotInspected, PlanFacts
from rekindle.doctor.base.findings import Finding
from rekindle.doctor.stack.rules import AlarmFacts, FunctionFacts, PeopleFacts, RuleFacts, StackFacts, stack_findings
from rekindle.doctor.stack.runs import RunFacts, best_interval, hard_failures, interval, run_findings
from rekindle.protocol.mailbox import Heartbeat, LossState, RunPhase

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
RULE = RuleFacts(enabled=True, targets=1, is_schedule=False, matched=12.0, failed=0.0)
FUNCTION = FunctionFacts(state="Active", update="Successful", errors=0.0)
ALARM = AlarmFacts(state="OK", may_act=True, actions=1)
GOOD = StackFacts(
    name="rekindle",
    status="UPDATE_COMPLETE",
    rules={"AlarmEvent": RULE, "Sweep": RuleFacts(enabled=True, targets=1, is_schedule=True)},
    functions={"Sweep": FUNCTION},
    mappings={"Deliver": "Enabled"},
    queues={"QuarantineQueue": 0, "DeliveriesQueue": 7},
    alarms={"SweepSilentAlarm": ALARM},
    sweeps=15.0,
    people=PeopleFacts(confirmed=1, pending=0, channels=0),
    buckets={"rekindle-mailbox": True},
    roles={"RecoverRole": ()},
)


def told(stack: Any) -> list[Finding]:
    return list(stack_findings("rekindle", stack))


def test_a_stack_that_is_well_is_not_talked_about() -> None:
    assert told(GOOD) == []


@pytest.mark.parametrize(
    ("change", "check", "severity", "says"),
    [
        ({"rules": {}}, "stack", "error", "the right one"),
        ({"functions": {}}, "stack", "error", "the right one"),
        ({"alarms": {}}, "stack", "error", "the right one"),
        ({"status": "ROLLBACK_COMPLETE"}, "stack", "error", "ROLLBACK_COMPLETE"),
        ({"status": "UPDATE_ROLLBACK_COMPLETE"}, "stack", "warning", "was undone"),
        ({"status": "UPDATE_IN_PROGRESS"}, "stack", "warning", "being changed"),
        ({"rules": {"A": Missing()}}, "stack-rules", "error", "deleted"),
        ({"rules": {"A": NotInspected("because")}}, "stack-rules", "unknown", "because"),
        ({"rules": {"A": replace(RULE, enabled=False)}}, "stack-rules", "error", "switched off"),
        ({"rules": {"A": replace(RULE, targets=0)}}, "stack-rules", "error", "no target"),
        ({"rules": {"A": replace(RULE, failed=3.0)}}, "stack-events", "error", "3 events"),
        ({"rules": {"A": replace(RULE, failed=1.0)}}, "stack-events", "error", "1 event of"),
        ({"rules": {"A": replace(RULE, matched=0.0)}}, "stack-events", "unknown", "proves nothing"),
        ({"rules": {"A": replace(RULE, failed=NotInspected("denied"))}}, "stack-events", "unknown", "denied"),
        ({"functions": {"F": Missing()}}, "stack-functions", "error", "deleted"),
        ({"functions": {"F": NotInspected("because")}}, "stack-functions", "unknown", "because"),
        ({"functions": {"F": replace(FUNCTION, state="Failed")}}, "stack-functions", "error", "Failed"),
        ({"functions": {"F": replace(FUNCTION, update="Failed")}}, "stack-functions", "error", "last update"),
        ({"functions": {"F": replace(FUNCTION, reserved=0)}}, "stack-functions", "error", "never runs"),
        ({"functions": {"F": replace(FUNCTION, errors=2.0)}}, "stack-functions", "warning", "2 times"),
        ({"functions": {"F": replace(FUNCTION, errors=1.0)}}, "stack-functions", "warning", "1 time in"),
        ({"mappings": {"M": "Disabled"}}, "stack-mappings", "error", "Disabled"),
        ({"mappings": {"M": Missing()}}, "stack-mappings", "error", "no function"),
        ({"sweeps": 0.0}, "stack-sweep", "error", "has not run"),
        ({"sweeps": NotInspected("denied")}, "stack-sweep", "unknown", "denied"),
        ({"queues": {"QuarantineQueue": 2}}, "stack-queues", "warning", "2 messages"),
        ({"queues": {"UndeliveredQueue": Missing()}}, "stack-queues", "error", "deleted"),
        ({"alarms": {"A": replace(ALARM, state="ALARM")}}, "stack-alarms", "error", "in ALARM"),
        ({"alarms": {"A": replace(ALARM, may_act=False)}}, "stack-alarms", "warning", "no one"),
        ({"alarms": {"A": replace(ALARM, actions=0)}}, "stack-alarms", "warning", "no one"),
        ({"alarms": {"A": Missing()}}, "stack-alarms", "error", "deleted"),
        ({"people": PeopleFacts(confirmed=0, pending=0, channels=0)}, "stack-people", "warning", "no one is notified"),
        ({"people": PeopleFacts(confirmed=1, pending=2, channels=0)}, "stack-people", "warning", "2 subscriptions not"),
        (
            {"people": PeopleFacts(confirmed=0, pending=0, channels=1, missing_secrets=("token",))},
            "stack-people",
            "error",
            "token",
        ),
        (
            {"people": PeopleFacts(confirmed=1, pending=0, channels=0, unreadable="it is not JSON")},
            "stack-people",
            "error",
            "not JSON",
        ),
        ({"buckets": {"b": Missing()}}, "stack-buckets", "error", "does not exist"),
        ({"roles": {"RecoverRole": ("sagemaker:StopTrainingJob",)}}, "stack-permissions", "error", "StopTrainingJob"),
        ({"roles": {"RecoverRole": NotInspected("denied")}}, "stack-permissions", "unknown", "denied"),
    ],
)
def test_what_is_wrong_is_told_once(change: dict[str, Any], check: str, severity: str, says: str) -> None:
    (finding,) = told(replace(GOOD, **change))
    assert (finding.check, finding.severity.value) == (check, severity)
    assert says in finding.message


def test_a_stack_that_is_not_there_is_an_error_and_one_that_cannot_be_read_is_unknown() -> None:
    assert [finding.severity.value for finding in told(Missing())] == ["error"]
    assert [finding.severity.value for finding in told(NotInspected("no credentials"))] == ["unknown"]


# ---- Jobs ------------------------------------------------------------------------------------------------------------


def heartbeat(at: datetime, ranks: int = 512) -> Heartbeat:
    return Heartbeat(
        job_id="lm",
        attempt="lm",
        attempt_number=1,
        step=10,
        first_step=0,
        loss=1.0,
        loss_state=LossState.FINITE,
        phase=RunPhase.TRAINING,
        step_s_median=1.0,
        rank=0,
        world_size=ranks,
        at=at,
    )


def saves(every: timedelta, count: int = 10, last: datetime = NOW) -> tuple[datetime, ...]:
    return tuple(last - every * index for index in reversed(range(count)))


RUN = RunFacts(
    job_id="lm",
    attempt="lm",
    since=NOW - timedelta(days=3),
    mailbox="s3://box/lm",
    policy="default",
    gpus=512,
    heartbeat=heartbeat(NOW - timedelta(minutes=1)),
    saves=saves(timedelta(minutes=59)),
)


PLAN = PlanFacts(
    status="Active",
    starts_at=NOW - timedelta(days=1),
    ends_at=NOW + timedelta(days=3),
    available=0,
    spare=0,
    targets=("training-job",),
)


def test_a_run_on_a_plan_that_lasts_is_not_talked_about_even_without_a_mailbox() -> None:
    assert list(run_findings(replace(RUN, plan=PLAN), now=NOW)) == []
    without = replace(RUN, mailbox="", plan=replace(PLAN, status="Failed"))
    assert [finding.check for finding in run_findings(without, now=NOW)] == ["run-plan", "run-mailbox"]


def test_a_run_that_saves_at_the_published_best_interval_is_not_talked_about() -> None:
    """Meta's rate (arXiv 2410.21680): 512 GPUs, 57.7 h between failures, best interval 59 minutes."""
    assert round(best_interval(timedelta(hours=57.7)).total_seconds() / 60) == 59
    assert list(run_findings(RUN, now=NOW)) == []


@pytest.mark.parametrize(
    ("change", "check", "severity", "says"),
    [
        ({"mailbox": ""}, "run-mailbox", "warning", "no emergency checkpoint"),
        ({"policy_problem": "does not exist"}, "run-policy", "error", "does not exist"),
        ({"heartbeat": heartbeat(NOW - timedelta(minutes=42))}, "run-heartbeat", "warning", "42 minutes"),
        ({"heartbeat": Missing()}, "run-heartbeat", "warning", "never been heard"),
        ({"heartbeat": NotInspected("denied")}, "run-heartbeat", "unknown", "denied"),
        ({"saves": saves(timedelta(hours=6))}, "run-cadence", "warning", "every 6.0 h"),
        ({"saves": saves(timedelta(minutes=5))}, "run-cadence", "warning", "of its time"),
        ({"saves": saves(timedelta(minutes=59), last=NOW - timedelta(hours=9))}, "run-cadence", "warning", "9.0 h old"),
        ({"saves": Missing()}, "run-cadence", "warning", "no two checkpoints"),
        ({"saves": NotInspected("denied")}, "run-cadence", "unknown", "denied"),
        ({"plan": Missing()}, "run-plan", "error", "does not exist"),
        ({"plan": NotInspected("denied")}, "run-plan", "unknown", "denied"),
        ({"plan": replace(PLAN, status="Expired")}, "run-plan", "error", "Expired"),
        ({"plan": replace(PLAN, ends_at=None)}, "run-plan", "unknown", "no end"),
        ({"plan": replace(PLAN, ends_at=NOW + timedelta(days=2))}, "run-plan", "warning", "from 2026-11-23 11:30"),
        ({"plan": replace(PLAN, ends_at=NOW + timedelta(minutes=30))}, "run-plan", "error", "which is past"),
        ({"gpus": None, "heartbeat": Missing(), "since": NOW}, "run-cadence", "unknown", "neither its size"),
    ],
)
def test_what_a_job_lacks_is_told_once(change: dict[str, Any], check: str, severity: str, says: str) -> None:
    (finding,) = run_findings(replace(RUN, **change), now=NOW)
    assert (finding.check, finding.severity.value) == (check, severity)
    assert says in finding.message


def test_enough_failures_of_its_own_count_more_than_the_published_rate() -> None:
    """One failure in eight hours: sqrt(2 x 30 s x 8 h) is 22 minutes, and an hour is much more than that."""
    fails = tuple(NOW - timedelta(hours=8 * index) for index in range(9))
    (finding,) = run_findings(replace(RUN, failures=fails), now=NOW)
    assert "its own 9 failures" in finding.message
    assert "about 22 min" in finding.message


def test_failures_count_for_the_time_of_which_they_are_known() -> None:
    """The API lists the newest Incidents: twenty in ten hours are one in half an hour, however old the Job is."""
    fails = tuple(NOW - timedelta(minutes=30 * index) for index in range(20))
    known = replace(RUN, failures=fails, counted_since=NOW - timedelta(hours=10), since=NOW - timedelta(days=300))
    (finding,) = run_findings(known, now=NOW)
    assert "about 5 min" in finding.message


def test_a_young_run_that_cannot_have_saved_twice_is_left_alone() -> None:
    young = replace(RUN, since=NOW - timedelta(minutes=30), saves=Missing(), heartbeat=heartbeat(NOW))
    assert list(run_findings(young, now=NOW)) == []


def test_only_hard_faults_of_readable_incidents_count_as_failures() -> None:
    rows: list[dict[str, object]] = [
        {"fault": "node_lost", "opened_at": "2026-11-20T12:00:00+00:00"},
        {"fault": "loss_spike", "opened_at": "2026-11-20T13:00:00+00:00"},
        {"fault": "hang", "opened_at": "yesterday"},
        {"fault": "hang"},
    ]
    assert hard_failures(rows) == (datetime(2026, 11, 20, 12, tzinfo=UTC),)


@given(st.lists(st.datetimes(timezones=st.just(UTC)), max_size=8))
def test_an_interval_is_never_negative_or_zero(times: list[datetime]) -> None:
    found = interval(times)
    assert found is None or found > timedelta(0)
