"""Slurm attempts read, stopped and started by orders: over whiteboards in memory, whose agent is the test."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.faults.slurm_states import STATUSES, failure_in, fault_of_end
from chalicelib.domain.model.action import Done, ResubmitJob
from chalicelib.domain.model.errors import DependencyUnavailable
from chalicelib.domain.model.incident import SkipWindow
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.domain.model.start_view import Submission
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.platforms.schedulers import Schedulers
from chalicelib.platforms.slurm.platform import SLURM
from chalicelib.platforms.slurm.scheduler import SlurmScheduler
from chalicelib.platforms.slurm.view import start_state
from rekindle.protocol.cluster.documents import AttemptDoc, EndedBy, SlurmState
from rekindle.protocol.cluster.orders import Order, OrderResult, Outcome, Verb
from rekindle.protocol.launch_orders import AttemptOrder
from rekindle.protocol.run_places import RunPlaces
from rekindle.slurm_agent.files.cause import of_text
from tests.fakes.headnodes import FakeHeadNodes
from tests.fakes.world import START, FakeClock, FakeMailbox, FakeScheduler

FIRST, RESTART, FRESH = "slurm.ml.123", "slurm.ml.123.r1", "slurm.ml.123-a2"
SPEC = "ab" * 32


def a_doc(**changes: Any) -> AttemptDoc:
    doc = AttemptDoc(
        attempt=FIRST,
        cluster="ml",
        slurm_job=123,
        restart=0,
        state=SlurmState.RUNNING,
        seen_at=START,
        name="pretrain",
        nodes=("gpu-1", "gpu-2"),
        node_count=2,
        submitted_at=START - timedelta(hours=1),
        is_requeueable=True,
        mailbox="/fsx/runs/lm",
        checkpoints="file:///fsx/runs/lm/ckpt",
        spec=SPEC,
    )
    return replace(doc, **changes)


JOB = Job(
    job_id=FIRST,
    name="pretrain",
    platform=SLURM.name,
    cluster="ml",
    policy_name="default",
    created_at=START,
    current_attempt=FIRST,
    attempt_number=1,
    attempt_started_at=START,
    mailbox=f"s3://stack/clusters/ml/jobs/{FIRST}",
    checkpoints="file:///fsx/runs/lm/ckpt",
)


@dataclass
class Lab:
    """The scheduler, and the agent as the test plays it."""

    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.head_nodes = FakeHeadNodes(self.clock)
        self.mailbox = FakeMailbox()
        self.scheduler = SlurmScheduler(self.head_nodes, self.mailbox, clock=self.clock, bucket="stack", bus="rekindle")
        self.head_nodes.heartbeat("ml")

    def answer(self, outcome: Outcome, *, detail: str = "", slurm_job: int | None = None) -> None:
        """The agent answers the order that was sent last, now."""
        order = self.head_nodes.sent[-1]
        self.head_nodes.answers[order.token] = OrderResult(
            token=order.token,
            verb=order.verb,
            cluster=order.cluster,
            outcome=outcome,
            at=self.clock.now(),
            detail=detail,
            attempt=order.attempt,
            slurm_job=slurm_job,
        )

    def later(self, **span: float) -> None:
        self.clock.advance(timedelta(**span))
        self.head_nodes.heartbeat("ml")

    def resubmit(self, *, policy: Policy = DEFAULT_POLICY, **changes: Any) -> Done:
        action = ResubmitJob(
            clone_of=FIRST,
            number=2,
            name=RESTART,
            resume_step=Known(400),
            resume_root="/fsx/runs/lm/ckpt/step-400",
            resume_manifest="",
            skips=(SkipWindow(from_step=410, to_step=420),),
            why="it crashed",
            how=Submission.REQUEUE,
        )
        self.result = self.scheduler.resubmit(replace(action, **changes), job=JOB, policy=policy, incident_id="inc-1")
        return self.result.done

    @property
    def last(self) -> Order:
        return self.head_nodes.sent[-1]


@pytest.fixture
def lab() -> Lab:
    return Lab()


def test_jobs_of_other_users_are_changed_only_where_the_policy_says_so(lab: Lab) -> None:
    for number, says in enumerate((False, True)):
        name = f"slurm.ml.12{number}"
        lab.head_nodes.show(a_doc(attempt=name, state=SlurmState.FAILED, is_requeueable=True))
        policy = Policy.from_wire({"name": "default", "resubmission": {"repoint_others": says}})
        lab.resubmit(policy=policy, clone_of=name, name=f"{name}.r1")
        assert lab.last.repoint_others is says


# ---- reading ---------------------------------------------------------------------------------------------------------


def test_every_state_of_slurm_but_unknown_has_a_status() -> None:
    assert set(STATUSES) == set(SlurmState) - {SlurmState.UNKNOWN}


@pytest.mark.parametrize("state", list(STATUSES))
def test_a_state_is_shown_as_its_status(lab: Lab, state: SlurmState) -> None:
    lab.head_nodes.show(a_doc(state=state))
    view = lab.scheduler.describe(FIRST)
    assert view.status is STATUSES[state]
    assert view.start is not None
    assert (view.start.handle, view.start.nodes, view.start.state) == ("123", ("gpu-1", "gpu-2"), start_state(state))
    assert (view.ended_at is not None) == view.status.has_ended
    assert bool(view.failure_reason) == (view.status is AttemptStatus.FAILED)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"state": SlurmState.NODE_FAIL, "reason": "NodeDown"}, "node_lost"),
        ({"state": SlurmState.NODE_FAIL, "detail": "RuntimeError: CUDA out of memory"}, "node_lost"),
        ({"state": SlurmState.BOOT_FAIL}, "node_lost"),
        ({"state": SlurmState.OUT_OF_MEMORY, "exit_signal": 125}, "out_of_memory"),
        ({"state": SlurmState.FAILED, "exit_code": 1, "reason": "NonZeroExitCode"}, "software_crash"),
        (
            {"state": SlurmState.FAILED, "exit_code": 1, "cause": of_text(b"CUDA out of memory").cause},
            "out_of_memory",
        ),
        ({"state": SlurmState.FAILED, "exit_signal": 9, "reason": "RaisedSignal"}, "software_crash"),
        (
            {"state": SlurmState.FAILED, "exit_code": 1, "cause": of_text(b"NVRM: Xid (PCI:0000:44:00): 79, x").cause},
            "node_hardware",
        ),
        ({"state": SlurmState.TIMEOUT}, "planned_end"),
        ({"state": SlurmState.PREEMPTED}, "planned_end"),
        ({"state": SlurmState.GONE}, "job_missing"),
        ({"state": SlurmState.CANCELLED}, None),
        ({"state": SlurmState.COMPLETED}, None),
        ({"state": SlurmState.RUNNING}, None),
    ],
)
def test_an_end_is_read_as_a_fault_by_the_tables(changes: dict[str, Any], fault: str | None) -> None:
    doc = a_doc(**changes)
    found = fault_of_end(doc.state, failure_in(doc))
    assert (found.value if found else None) == fault


def test_a_state_that_cannot_be_read_is_no_state(lab: Lab) -> None:
    lab.head_nodes.show(a_doc(state=SlurmState.UNKNOWN))
    with pytest.raises(DependencyUnavailable):
        lab.scheduler.describe(FIRST)


def test_with_a_silent_agent_nothing_is_said_stopped_or_started(lab: Lab) -> None:
    lab.head_nodes.show(a_doc())
    lab.clock.advance(timedelta(seconds=181))
    with pytest.raises(DependencyUnavailable):
        lab.scheduler.describe(FIRST)
    with pytest.raises(DependencyUnavailable):
        lab.scheduler.stop(FIRST)
    with pytest.raises(DependencyUnavailable):
        lab.resubmit()
    assert lab.head_nodes.sent == []
    assert lab.mailbox.plans == {}


def test_a_requeued_start_names_its_successor(lab: Lab) -> None:
    lab.head_nodes.show(a_doc(state=SlurmState.REQUEUED, successor=RESTART, requeued_by=EndedBy.SLURM))
    view = lab.scheduler.describe(FIRST)
    assert (view.status, view.successor) == (AttemptStatus.STOPPED, RESTART)
    assert view.start is not None
    assert view.start.requeued_by is EndedBy.SLURM


def test_a_start_that_nobody_knows_is_gone_but_one_just_ordered_is_starting(lab: Lab) -> None:
    assert lab.scheduler.describe(RESTART).status is AttemptStatus.GONE
    lab.head_nodes.show(a_doc(state=SlurmState.FAILED))
    assert lab.resubmit() is Done.PENDING
    assert lab.scheduler.describe(RESTART).status is AttemptStatus.STARTING
    lab.answer(Outcome.DONE)
    assert lab.scheduler.describe(RESTART).status is AttemptStatus.STARTING
    lab.later(minutes=6)
    assert lab.scheduler.describe(RESTART).status is AttemptStatus.GONE


# ---- registration ----------------------------------------------------------------------------------------------------


def test_a_mailbox_on_a_shared_path_is_met_in_our_copy_of_it(lab: Lab) -> None:
    lab.head_nodes.show(a_doc(cannot_resubmit=("it is an array job",), is_requeueable=False))
    found = lab.scheduler.discover(FIRST)
    assert found is not None
    assert found.mailbox == f"s3://stack/clusters/ml/jobs/{FIRST}"
    assert found.checkpoints == "file:///fsx/runs/lm/ckpt"
    assert (found.title, found.instance_count, found.number, found.job_id) == ("pretrain", 2, 1, None)
    assert found.platform == SLURM.name
    assert any("it is an array job" in limit for limit in found.limits)
    assert any("Requeue=0" in limit for limit in found.limits)


def test_a_mailbox_in_s3_is_used_as_it_is(lab: Lab) -> None:
    lab.head_nodes.show(a_doc(mailbox="s3://runs/lm/"))
    found = lab.scheduler.find(FIRST)
    assert found is not None
    assert (found.mailbox, found.limits) == ("s3://runs/lm", ())


@pytest.mark.parametrize(
    "mailbox",
    ["s3://stack/clusters/other/jobs/slurm.other.7", "s3://stack//clusters/ml/jobs/slurm.ml.7", "s3://stack/clusters"],
)
def test_a_comment_cannot_have_us_write_the_whiteboard(lab: Lab, mailbox: str) -> None:
    lab.head_nodes.show(a_doc(mailbox=mailbox))
    found = lab.scheduler.find(FIRST)
    assert found is not None
    assert found.mailbox == ""
    assert any("the cluster state" in limit for limit in found.limits)


def test_a_jobs_name_reaches_no_terminal_raw(lab: Lab) -> None:
    lab.head_nodes.show(a_doc(name="x\x1b[31m\ny"))
    found = lab.scheduler.find(FIRST)
    assert found is not None
    assert found.title == "x [31m y"


@pytest.mark.parametrize("job_id", ["slurm.other.7", "a-training-job"])
def test_a_head_node_speaks_of_its_own_clusters_jobs_only(lab: Lab, job_id: str) -> None:
    lab.head_nodes.show(a_doc(job_id=job_id))
    found = lab.scheduler.find(FIRST)
    assert found is not None
    assert found.job_id is None


def test_a_run_that_cannot_be_asked_for_a_checkpoint_says_so(lab: Lab) -> None:
    lab.head_nodes.show(a_doc(mailbox="", signal=None))
    found = lab.scheduler.find(FIRST)
    assert found is not None
    assert any("cannot be asked for a checkpoint" in limit for limit in found.limits)


def test_a_restart_belongs_to_the_job_of_its_first_start(lab: Lab) -> None:
    lab.head_nodes.show(a_doc(attempt=RESTART, restart=1))
    found = lab.scheduler.discover(RESTART)
    assert found is not None
    assert (found.job_id, found.number) == (FIRST, 2)
    assert found.mailbox == f"s3://stack/clusters/ml/jobs/{FIRST}"


# ---- stopping --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "hold", "verb"),
    [
        (SlurmState.RUNNING, True, Verb.HOLD),
        (SlurmState.RUNNING, False, Verb.CANCEL),
        (SlurmState.CONFIGURING, True, Verb.HOLD),
        (SlurmState.PENDING, True, Verb.CANCEL),
    ],
)
def test_a_stop_is_an_order(lab: Lab, state: SlurmState, hold: bool, verb: Verb) -> None:
    lab.head_nodes.show(a_doc(state=state))
    assert lab.scheduler.stop(FIRST, hold=hold, incident_id="inc-1").done is Done.PENDING
    assert (lab.last.verb, lab.last.attempt, lab.last.slurm_job, lab.last.incident_id) == (verb, FIRST, 123, "inc-1")
    assert lab.scheduler.stop(FIRST, hold=hold, incident_id="inc-1").done is Done.PENDING
    assert len({order.token for order in lab.head_nodes.sent}) == 1
    lab.answer(Outcome.DONE)
    assert lab.scheduler.stop(FIRST, hold=hold).done is Done.DONE


@pytest.mark.parametrize("state", [SlurmState.COMPLETING, SlurmState.FAILED, SlurmState.REQUEUED])
def test_what_ends_by_itself_is_not_stopped(lab: Lab, state: SlurmState) -> None:
    lab.head_nodes.show(a_doc(state=state))
    assert lab.scheduler.stop(FIRST, hold=True).done is Done.ALREADY
    assert lab.scheduler.stop("slurm.ml.77").done is Done.ALREADY
    assert lab.head_nodes.sent == []


def test_a_refusal_is_told_with_the_agent_s_words(lab: Lab) -> None:
    lab.head_nodes.show(a_doc())
    lab.scheduler.stop(FIRST)
    lab.answer(Outcome.REFUSED, detail="job 123 belongs to nobody here")
    result = lab.scheduler.stop(FIRST)
    assert result.done is Done.REFUSED
    assert "belongs to nobody" in result.detail


def test_an_order_that_came_to_nothing_is_given_anew(lab: Lab) -> None:
    lab.head_nodes.show(a_doc())
    lab.scheduler.stop(FIRST)
    lab.answer(Outcome.FAILED, detail="slurmctld did not answer")
    assert lab.scheduler.stop(FIRST).done is Done.PENDING  # the effect is looked for first: it still runs
    assert lab.last.token.endswith(".1")
    lab.later(minutes=16)
    lab.answer(Outcome.REFUSED, detail="expired")
    assert lab.scheduler.stop(FIRST).done is Done.PENDING
    assert lab.last.token.endswith(".2")
    assert lab.last.expires_at > lab.clock.now()


def test_an_order_that_nobody_took_in_time_is_given_anew(lab: Lab) -> None:
    lab.head_nodes.show(a_doc())
    lab.scheduler.stop(FIRST)
    lab.later(minutes=5)
    lab.scheduler.stop(FIRST)
    assert lab.last.token.endswith(".0")  # an answer may still be on its way
    lab.later(minutes=2)
    lab.scheduler.stop(FIRST)
    assert lab.last.token.endswith(".1")


def test_an_agent_that_never_manages_is_told_at_last(lab: Lab) -> None:
    lab.head_nodes.show(a_doc())
    for _ in range(5):
        assert lab.scheduler.stop(FIRST).done is Done.PENDING
        lab.answer(Outcome.FAILED, detail="slurmctld did not answer")
    assert lab.scheduler.stop(FIRST).done is Done.UNAVAILABLE
    assert len(lab.head_nodes.sent) == 5


# ---- starting --------------------------------------------------------------------------------------------------------


def test_a_requeue_is_planned_before_it_is_ordered(lab: Lab) -> None:
    lab.head_nodes.show(a_doc(state=SlurmState.FAILED))
    assert lab.resubmit(exclude=("gpu-2",)) is Done.PENDING
    order = lab.last
    assert (order.verb, order.attempt, order.new_attempt, order.slurm_job) == (Verb.REQUEUE, FIRST, RESTART, 123)
    assert (order.exclude, order.environment, order.spec) == (("gpu-2",), {}, None)
    plan = lab.mailbox.plans[RESTART]
    assert (plan.job_id, plan.attempt_number, plan.resume.step) == (FIRST, 2, 400)
    assert plan.resume.uri == "/fsx/runs/lm/ckpt/step-400"
    assert plan.mailbox == "/fsx/runs/lm"  # as the run sees it
    lab.answer(Outcome.DONE)
    assert lab.resubmit(exclude=("gpu-2",)) is Done.DONE


@pytest.mark.parametrize(("min_nodes", "count", "whole"), [(1, 1, 2), (1, 2, None), (None, 1, None)])
@pytest.mark.parametrize(("how", "name"), [(Submission.REQUEUE, f"{FIRST}.r2"), (Submission.SUBMIT, FRESH)])
def test_after_a_small_start_all_nodes_are_asked_for_again(
    lab: Lab, min_nodes: int | None, count: int, whole: int | None, how: Submission, name: str
) -> None:
    lab.head_nodes.show(a_doc(state=SlurmState.REQUEUED, successor=RESTART, min_nodes=min_nodes))
    lab.head_nodes.show(
        a_doc(attempt=RESTART, restart=1, state=SlurmState.FAILED, node_count=count, min_nodes=min_nodes)
    )
    assert lab.resubmit(clone_of=RESTART, name=name, number=3, how=how) is Done.PENDING
    assert (lab.last.nodes_min, lab.last.nodes_max) == (whole, whole)


def test_a_submission_is_told_by_its_environment(lab: Lab) -> None:
    lab.head_nodes.show(a_doc(state=SlurmState.FAILED, is_known=False))
    assert lab.resubmit(name=FRESH, how=Submission.SUBMIT) is Done.PENDING
    order = lab.last
    assert (order.verb, order.new_attempt, order.spec) == (Verb.SUBMIT, FRESH, SPEC)
    told = AttemptOrder.from_env(order.environment)
    assert (told.job_id, told.attempt_number, told.resume.step) == (FIRST, 2, 400)
    assert order.environment["REKINDLE_ATTEMPT_NAME"] == FRESH
    assert order.environment["REKINDLE_CLUSTER"] == "ml"
    assert order.environment["REKINDLE_SKIP"] == "[[410,420]]"
    assert Order.from_json(order.to_json()) == order


def test_nothing_of_an_earlier_resubmission_is_left_in_the_environment(lab: Lab) -> None:
    lab.head_nodes.show(a_doc(state=SlurmState.FAILED))
    lab.resubmit(
        name=FRESH, how=Submission.SUBMIT, resume_step=Unknown("from nothing"), resume_root=None, resume_manifest=None
    )
    environment = lab.last.environment
    assert environment["REKINDLE_RESUME_STEP"] == environment["REKINDLE_RESUME_URI"] == ""
    assert AttemptOrder.from_env(environment).resume.step is None


@pytest.mark.parametrize(
    ("changes", "how", "why"),
    [
        ({"spec": None, "cannot_resubmit": ("it is interactive",)}, Submission.SUBMIT, "interactive"),
        ({"is_known": False}, Submission.REQUEUE, "no longer knows"),
        ({}, Submission.CLONE, "not cloned"),
    ],
)
def test_what_cannot_be_started_is_refused_with_the_reason(
    lab: Lab, changes: dict[str, Any], how: Submission, why: str
) -> None:
    lab.head_nodes.show(a_doc(state=SlurmState.FAILED, **changes))
    assert lab.resubmit(name=FRESH, how=how) is Done.REFUSED
    assert why in lab.result.detail
    assert lab.head_nodes.sent == []
    assert lab.mailbox.plans == {}


def test_a_value_that_does_not_fit_is_refused(lab: Lab) -> None:
    lab.head_nodes.show(a_doc(state=SlurmState.FAILED))
    assert lab.resubmit(name=FRESH, how=Submission.SUBMIT, resume_root="/" + "x" * 600) is Done.REFUSED


def test_a_start_that_slurm_shows_already_is_not_ordered(lab: Lab) -> None:
    lab.head_nodes.show(a_doc(state=SlurmState.REQUEUED, successor=RESTART))
    lab.head_nodes.show(a_doc(attempt=RESTART, restart=1, state=SlurmState.PENDING))
    assert lab.resubmit() is Done.ALREADY
    assert lab.head_nodes.sent == []


def test_a_start_that_is_held_for_us_is_let_go(lab: Lab) -> None:
    lab.head_nodes.show(a_doc(state=SlurmState.REQUEUED, successor=RESTART, requeued_by=EndedBy.AGENT))
    lab.head_nodes.show(a_doc(attempt=RESTART, restart=1, state=SlurmState.PENDING, held=True))
    assert lab.resubmit() is Done.PENDING
    assert lab.last.verb is Verb.REQUEUE


@pytest.mark.parametrize(
    ("more", "is_sibling"),
    [
        ({"job_id": FIRST}, True),
        ({"job_id": FIRST, "state": SlurmState.PENDING}, True),
        ({"job_id": FIRST, "state": SlurmState.PENDING, "held": True}, False),
        ({"job_id": FIRST, "state": SlurmState.FAILED}, False),
        ({"job_id": "slurm.ml.7"}, False),
        ({"mailbox": "/fsx/runs/another"}, False),
        ({"mailbox": ""}, True),  # its checkpoints lie in the same folder
        ({"mailbox": "", "checkpoints": "/fsx/runs/another"}, False),
        ({"mailbox": "", "checkpoints": ""}, False),
        ({"mailbox": "/fsx/runs/lm/"}, True),
        ({"mailbox": "//fsx/./runs//lm"}, True),
        ({"mailbox": "file:///fsx/runs/lm"}, True),
        ({"mailbox": "/link", "places": RunPlaces(mailbox="/fsx/runs/lm")}, True),
        ({"mailbox": "/fsx/runs/lm", "places": RunPlaces(mailbox="/fsx/runs/old")}, False),
        ({"mailbox": "/fsx/runs/lm", "state": SlurmState.PENDING}, False),
        ({"mailbox": "/fsx/runs/lm", "job_id": "slurm.ml.7"}, False),
    ],
)
def test_a_start_that_names_the_job_and_lives_is_a_sibling(lab: Lab, more: dict[str, Any], is_sibling: bool) -> None:
    lab.head_nodes.show(a_doc(state=SlurmState.FAILED))
    lab.head_nodes.show(a_doc(attempt=FRESH, slurm_job=200, **more))
    assert lab.scheduler.siblings(JOB, besides={RESTART}) == ((FRESH,) if is_sibling else ())
    assert lab.scheduler.siblings(JOB, besides={FRESH}) == ()


@pytest.mark.parametrize(
    ("more", "is_missed"),
    [
        ({"job_id": FIRST, "state": SlurmState.FAILED}, True),
        ({"job_id": FIRST, "state": SlurmState.RUNNING}, False),
        ({"job_id": "slurm.ml.7", "state": SlurmState.FAILED}, False),
        ({"mailbox": "/fsx/runs/lm/", "state": SlurmState.CANCELLED}, True),
        ({"mailbox": "/fsx/runs/another", "state": SlurmState.CANCELLED}, False),
        ({"mailbox": "/fsx/runs/lm", "job_id": "slurm.ml.7", "state": SlurmState.FAILED, "started_at": START}, True),
        ({"mailbox": "/fsx/runs/lm", "job_id": "slurm.ml.7", "state": SlurmState.CANCELLED, "started_at": None}, False),
    ],
)
def test_a_later_start_that_names_the_job_and_has_ended_was_missed(
    lab: Lab, more: dict[str, Any], is_missed: bool
) -> None:
    lab.head_nodes.show(a_doc(state=SlurmState.FAILED))
    lab.head_nodes.show(a_doc(attempt=FRESH, slurm_job=200, **more))
    assert lab.scheduler.missed(JOB, besides={RESTART}) == (FRESH if is_missed else None)
    assert lab.scheduler.missed(JOB, besides={FRESH}) is None


def test_a_name_of_another_job_is_taken(lab: Lab) -> None:
    lab.head_nodes.show(a_doc(state=SlurmState.FAILED))
    lab.head_nodes.show(a_doc(attempt=FRESH, slurm_job=200, job_id="slurm.ml.7"))
    assert lab.resubmit(name=FRESH, how=Submission.SUBMIT) is Done.NAME_TAKEN


def test_an_attempt_that_is_not_known_any_more_cannot_be_started_again(lab: Lab) -> None:
    assert lab.resubmit() is Done.REFUSED


def test_a_name_too_long_for_a_token_still_has_one_of_its_own(lab: Lab) -> None:
    names = [f"slurm.ml.{'9' * 100}{index}" for index in range(2)]
    for name in names:
        lab.head_nodes.show(a_doc(attempt=name))
        assert lab.scheduler.stop(name).done is Done.PENDING
    assert len({order.token for order in lab.head_nodes.sent}) == 2


# ---- routing ---------------------------------------------------------------------------------------------------------


def test_a_job_stores_its_platform_and_an_unknown_name_is_asked_for_by_its_form(lab: Lab) -> None:
    training = FakeScheduler(lab.clock)
    training.put("lm-7b")
    both = Schedulers(lab.scheduler, training)
    lab.head_nodes.show(a_doc())
    assert both.of("training_job").describe("lm-7b").start is None
    assert both.of("slurm").describe(FIRST).start is not None
    assert both.of_name("lm-7b").find("lm-7b") is not None
    assert both.of_name(FIRST).discover(FIRST) is not None
    assert both.of("training_job").stop("lm-7b", hold=True).done is Done.DONE
    assert both.of("slurm").stop(FIRST, hold=True).done is Done.PENDING
    assert training.stops == ["lm-7b"]
