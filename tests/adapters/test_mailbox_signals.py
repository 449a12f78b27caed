"""Runs on Slurm that lie on a shared path: the agent's list of checkpoints, plans, marks, and the signal's answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.aws.s3.mailbox import S3Mailbox
from chalicelib.domain.model.action import Done, QuarantineCheckpoint, RequestCheckpoint
from chalicelib.domain.model.errors import DependencyUnavailable, Permanent
from chalicelib.domain.model.job import Attempt, Job
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.platforms.slurm.mailbox import MAX_UNHEARD, SlurmMailbox, unheard_starts
from chalicelib.platforms.slurm.platform import SLURM
from rekindle.protocol.cluster.documents import AttemptDoc, FoundCheckpoint, FoundDoc, SlurmState
from rekindle.protocol.cluster.names import found_key
from rekindle.protocol.cluster.orders import OrderResult, Outcome, Verb
from rekindle.protocol.keys import plan_key
from rekindle.protocol.launch_orders import AttemptOrder, Plan, ResumePlan
from tests.adapters.conftest import make_client
from tests.fakes.headnodes import FakeHeadNodes
from tests.fakes.world import START, FakeClock

BUCKET, FIRST = "stack-mailbox", "slurm.ml.123"
RELAY = f"clusters/ml/jobs/{FIRST}"
ROOT = "/fsx/lm/ckpt"

JOB = Job(
    job_id=FIRST,
    name="pretrain",
    platform=SLURM.name,
    cluster="ml",
    policy_name="default",
    created_at=START,
    current_attempt=FIRST,
    attempt_number=1,
    attempt_started_at=START - timedelta(hours=1),
    checkpoints=f"file://{ROOT}",
)
RELAYED = replace(JOB, mailbox=f"s3://{BUCKET}/{RELAY}")
ATTEMPTS = [Attempt(job_id=FIRST, number=1, name=FIRST, submitted_at=START - timedelta(hours=1))]
ASK = RequestCheckpoint(request_id="inc-1-r1", attempt=FIRST, deadline_at=START + timedelta(minutes=5), why="a node")


@dataclass
class Box:
    """The mailbox over S3, and whiteboards in memory."""

    clock: FakeClock
    head_nodes: FakeHeadNodes
    s3: Any

    def __post_init__(self) -> None:
        self.mailbox = SlurmMailbox(S3Mailbox(self.s3, bucket=BUCKET), self.head_nodes, bucket=BUCKET)

    def run(self, **changes: Any) -> None:
        doc = AttemptDoc(
            attempt=FIRST,
            cluster="ml",
            slurm_job=123,
            restart=0,
            state=SlurmState.RUNNING,
            seen_at=START,
            signal="USR1",
            is_ready=True,
        )
        self.head_nodes.show(replace(doc, **changes))

    def found(self, *checkpoints: FoundCheckpoint, job_id: str = FIRST) -> None:
        doc = FoundDoc(job_id=job_id, seen_at=self.clock.now(), checkpoints=checkpoints)
        self.s3.put_object(Bucket=BUCKET, Key=found_key("ml", FIRST), Body=doc.to_json())

    def ask(self, job: Job = JOB) -> Done:
        self.result = self.mailbox.ask(job, ASK, incident_id="inc-1", now=self.clock.now())
        return self.result.done


def a_checkpoint(step: int, *, age: timedelta = timedelta(minutes=10), **changes: Any) -> FoundCheckpoint:
    found = FoundCheckpoint(step=step, root=f"file://{ROOT}/step-{step}", kind="torch_dcp", saved_at=START - age)
    return replace(found, **changes)


@pytest.fixture
def box(aws: None) -> Box:
    clock = FakeClock()
    s3 = make_client("s3")
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    head_nodes = FakeHeadNodes(clock)
    head_nodes.heartbeat("ml")
    return Box(clock, head_nodes, s3)


# ---- what the agent has found ----------------------------------------------------------------------------------------


def test_checkpoints_on_a_shared_path_are_those_that_the_agent_lists(box: Box) -> None:
    box.found(a_checkpoint(200), a_checkpoint(100, problems=("rank 1 of 2 is missing",)))
    views = box.mailbox.checkpoints(RELAYED, ATTEMPTS).value
    assert [(view.step, view.root, view.attempt, view.problems) for view in views] == [
        (200, f"{ROOT}/step-200", FIRST, ()),
        (100, f"{ROOT}/step-100", FIRST, ("rank 1 of 2 is missing",)),
    ]


def test_the_agent_s_word_that_a_loss_could_not_be_read_reaches_the_choice_of_a_resume_point(box: Box) -> None:
    box.found(replace(a_checkpoint(200), loss_unread=True), a_checkpoint(100))
    views = box.mailbox.checkpoints(RELAYED, ATTEMPTS).value
    assert [(view.step, view.loss_unread) for view in views] == [(200, True), (100, False)]


@pytest.mark.parametrize("job", [RELAYED, JOB, replace(RELAYED, checkpoints="")])
def test_no_list_is_no_empty_list(box: Box, job: Job) -> None:
    with pytest.raises(DependencyUnavailable, match="not listed"):
        box.mailbox.checkpoints(job, ATTEMPTS)
    box.found()
    assert box.mailbox.checkpoints(job, ATTEMPTS).value == ()


@pytest.mark.parametrize("body", [b"", b"{", b'{"v": 1}', b'{"v": 9}'])
def test_a_list_that_cannot_be_used_is_a_reason(box: Box, body: bytes) -> None:
    box.s3.put_object(Bucket=BUCKET, Key=found_key("ml", FIRST), Body=body)
    with pytest.raises(DependencyUnavailable, match="cannot be used"):
        box.mailbox.checkpoints(RELAYED, ATTEMPTS)


def test_another_job_s_list_is_not_believed(box: Box) -> None:
    box.found(a_checkpoint(1), job_id="slurm.ml.9")
    with pytest.raises(DependencyUnavailable, match="job_id"):
        box.mailbox.checkpoints(RELAYED, ATTEMPTS)


def test_a_run_whose_checkpoints_are_in_s3_needs_no_list(box: Box) -> None:
    assert box.mailbox.checkpoints(replace(JOB, checkpoints=f"s3://{BUCKET}/ck"), ATTEMPTS).value == ()


def test_what_a_superseded_or_unknown_attempt_saved_late_is_fenced(box: Box) -> None:
    old = replace(ATTEMPTS[0], superseded_at=START - timedelta(minutes=5))
    new = Attempt(job_id=FIRST, number=2, name=f"{FIRST}.r1", submitted_at=START - timedelta(minutes=5))
    box.found(
        a_checkpoint(300, attempt=FIRST, age=timedelta(minutes=1)),
        a_checkpoint(200, attempt=FIRST),
        a_checkpoint(150, attempt="slurm.ml.77"),
    )
    views = box.mailbox.checkpoints(replace(RELAYED, current_attempt=new.name), [old, new]).value
    assert {view.step: view.fenced for view in views} == {300: True, 200: False, 150: True}


def test_a_checkpoint_on_a_shared_path_can_be_marked_with_and_without_a_mailbox(box: Box) -> None:
    box.found(a_checkpoint(200), a_checkpoint(100))
    action = QuarantineCheckpoint(root=f"{ROOT}/step-200", why="its loss was bad")
    assert box.mailbox.quarantine(JOB, action, by="inc-1", now=START).done is Done.DONE
    assert box.mailbox.quarantine(RELAYED, action, by="inc-1", now=START).done is Done.ALREADY  # one place for both
    for job in (JOB, RELAYED):
        views = box.mailbox.checkpoints(job, ATTEMPTS).value
        assert [(view.step, any("its loss was bad" in problem for problem in view.problems)) for view in views] == [
            (200, True),
            (100, False),
        ]


# ---- plans -----------------------------------------------------------------------------------------------------------

ORDER = AttemptOrder(
    job_id=FIRST, attempt_number=2, mailbox="/fsx/lm", resume=ResumePlan(step=100, uri=f"{ROOT}/step-100")
)


def test_a_plan_lies_under_the_name_of_the_attempt_to_come(box: Box) -> None:
    for _ in range(2):
        box.mailbox.plan(RELAYED, f"{FIRST}.r1", ORDER, now=START)
    raw = box.s3.get_object(Bucket=BUCKET, Key=f"{RELAY}/{plan_key(f'{FIRST}.r1')}")["Body"].read()
    plan = Plan.from_json(raw)
    assert (plan.attempt, plan.order, plan.written_at) == (f"{FIRST}.r1", ORDER, START)


def test_a_run_without_a_mailbox_has_no_plan_and_a_bad_one_is_refused(box: Box) -> None:
    box.mailbox.plan(JOB, f"{FIRST}.r1", ORDER, now=START)
    assert box.s3.list_objects_v2(Bucket=BUCKET).get("KeyCount") == 0
    with pytest.raises(Permanent, match="plan"):
        box.mailbox.plan(RELAYED, "../r1", ORDER, now=START)


# ---- the signal ------------------------------------------------------------------------------------------------------


def test_a_run_without_a_mailbox_is_asked_by_the_signal_that_it_traps(box: Box) -> None:
    box.run()
    assert box.ask() is Done.DONE
    order = box.head_nodes.sent[-1]
    assert (order.verb, order.signal, order.attempt, order.slurm_job) == (Verb.SIGNAL, "USR1", FIRST, 123)
    assert (order.expires_at, order.incident_id) == (ASK.deadline_at, "inc-1")
    assert box.ask() is Done.DONE
    assert len(box.head_nodes.orders) == 1


@pytest.mark.parametrize(
    ("changes", "job", "why"),
    [
        ({"signal": None}, JOB, "not known to trap"),
        ({"signal": "WINCH"}, JOB, "traps SIGWINCH"),
        ({"is_ready": False}, JOB, "do not trap the signal yet"),
        ({"state": SlurmState.PENDING}, JOB, "no process would receive"),
        ({"state": SlurmState.COMPLETING}, JOB, "no process would receive"),
        ({}, replace(JOB, checkpoints=""), "where its checkpoints appear"),
    ],
)
def test_a_signal_that_would_be_lost_or_would_kill_is_not_sent(
    box: Box, changes: dict[str, Any], job: Job, why: str
) -> None:
    box.run(**changes)
    assert box.ask(job) is Done.REFUSED
    assert why in box.result.detail
    assert box.head_nodes.sent == []


def test_readiness_that_nobody_can_tell_keeps_no_signal_back(box: Box) -> None:
    box.run(is_ready=None)
    assert box.ask() is Done.DONE


def test_only_a_new_complete_checkpoint_is_an_answer(box: Box) -> None:
    box.run()
    box.found(a_checkpoint(100))
    assert box.mailbox.reply(JOB, ASK.request_id) == Known(None)  # not even asked
    box.ask()
    box.head_nodes.answers["signal.inc-1-r1"] = OrderResult(
        token="signal.inc-1-r1", verb=Verb.SIGNAL, cluster="ml", outcome=Outcome.DONE, at=START
    )
    assert box.mailbox.reply(JOB, ASK.request_id) == Known(None)  # scancel's success is none
    fresh = a_checkpoint(120, age=timedelta(seconds=-20), problems=("rank 1 of 2 is missing",))
    box.found(fresh, a_checkpoint(100))
    assert box.mailbox.reply(JOB, ASK.request_id) == Known(None)  # half of one is none
    box.found(replace(fresh, problems=()), a_checkpoint(100))
    reply = box.mailbox.reply(JOB, ASK.request_id)
    assert isinstance(reply, Known)
    assert reply.value is not None
    assert (reply.value.outcome, reply.value.step) == ("saved", 120)


def test_a_refused_signal_is_an_answer_too(box: Box) -> None:
    box.run()
    box.found()
    box.ask()
    box.head_nodes.answers["signal.inc-1-r1"] = OrderResult(
        token="signal.inc-1-r1", verb=Verb.SIGNAL, cluster="ml", outcome=Outcome.REFUSED, at=START, detail="stale"
    )
    assert box.ask() is Done.REFUSED
    reply = box.mailbox.reply(JOB, ASK.request_id)
    assert isinstance(reply, Known)
    assert reply.value is not None
    assert (reply.value.outcome, reply.value.step) == ("cannot", None)
    assert "stale" in reply.value.why


def test_where_the_list_cannot_be_read_the_answer_is_unknown(box: Box) -> None:
    box.run()
    box.ask()
    assert isinstance(box.mailbox.reply(JOB, ASK.request_id), Unknown)


def test_a_run_with_a_mailbox_is_asked_there(box: Box) -> None:
    box.run()
    assert box.ask(RELAYED) is Done.DONE
    assert box.head_nodes.sent == []
    keys = [item["Key"] for item in box.s3.list_objects_v2(Bucket=BUCKET)["Contents"]]
    assert f"{RELAY}/rekindle/requests/{ASK.request_id}.json" in keys


def start(name: str, minute: int = 0, **more: Any) -> Attempt:
    return Attempt(job_id=FIRST, number=1, name=name, submitted_at=START + timedelta(minutes=minute), **more)


def test_starts_of_a_slurm_job_before_the_first_known_one_are_the_runs() -> None:
    known = (start("slurm.ml.9.r3", 9), start("slurm.ml.9.r2", 5), start("slurm.ml.7"), start("lm-training-job"))
    known = tuple(replace(one, resume_step=Unknown("it was given none")) for one in known)
    unheard = unheard_starts(known)
    assert [one.name for one in unheard] == ["slurm.ml.9", "slurm.ml.9.r1"]
    assert {attempt.superseded_at for attempt in unheard} == {START + timedelta(minutes=5)}, (
        "what is saved later is a zombie's"
    )


def test_starts_before_one_that_was_ordered_to_go_back_are_none_of_its_line() -> None:
    assert unheard_starts([start("slurm.ml.9.r2", resume_step=Known(40))]) == ()
    assert len(unheard_starts([start("slurm.ml.9.r5000")])) == MAX_UNHEARD
