"""Runs on Slurm as the services see them: how they join, what agents and nodes say, and what the sweep finds.

The whiteboards are the port's fake; everything else is the world of the other service tests.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.model.errors import DependencyUnavailable, InvalidRequest, NotOurs, UnknownEntity
from chalicelib.domain.model.incident import Incident, Phase, TimelineEntry, Try
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Unknown
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.ingest.dispatch import parse
from chalicelib.platforms.schedulers import Schedulers
from chalicelib.platforms.slurm.found import found_of
from chalicelib.platforms.slurm.platform import SLURM
from chalicelib.platforms.slurm.scheduler import SlurmScheduler
from chalicelib.platforms.training_job.platform import TRAINING_JOB
from chalicelib.services.intake.intake import Intake
from chalicelib.services.operator.clusters import Clusters
from chalicelib.services.operator.orders import Orders
from chalicelib.services.reporting.alarms import Alarms
from chalicelib.services.reporting.outcome import Outcome, OutcomeKind
from chalicelib.services.sweep.clusters import SweepClusters
from chalicelib.services.sweep.job_check import JobCheck
from chalicelib.services.sweep.sweep import Sweep, SweepFigures
from chalicelib.services.sweep.unheard import UnheardAttempts
from localcloud.memory_ports import MemoryMarks
from localcloud.memory_tables import MemoryIncidents, MemoryJobs
from rekindle.protocol.cluster.documents import AttemptDoc, EndedBy, NodeFacts, NodesDoc, SlurmState
from rekindle.protocol.cluster.queue_place import QueueFact
from rekindle.protocol.signals import FaultClass
from tests.fakes.executions import RememberedExecutions
from tests.fakes.headnodes import FakeHeadNodes
from tests.fakes.watching import FakeAlarmStore, FakeListing, FakeMetrics, FakeSaves
from tests.fakes.world import (
    START,
    FakeAnnouncer,
    FakeClock,
    FakeClusterReader,
    FakeMailbox,
    FakePolicies,
    FakeScheduler,
)
from tests.ingest import golden

CLUSTER = "pretrain"
FIRST, RESTART = "slurm.pretrain.4211", "slurm.pretrain.4211.r1"
INSTANCE = "i-0a1b2c3d4e5f60718"  # of the golden events; the map says that it is gpu-2


class World:
    """The services over fakes, with a whiteboard."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.registry = MemoryJobs()
        self.store = MemoryIncidents(self.registry)
        self.head_nodes = FakeHeadNodes(self.clock)
        self.mailbox = FakeMailbox()
        self.announcer = FakeAnnouncer()
        self.clusters = FakeClusterReader()
        self.executions = RememberedExecutions()
        self.training = FakeScheduler(self.clock)
        slurm = SlurmScheduler(self.head_nodes, self.mailbox, clock=self.clock, bucket="stack")
        self.scheduler = Schedulers(slurm, self.training)
        common: dict[str, Any] = {"registry": self.registry, "scheduler": self.scheduler, "clock": self.clock}
        self.intake = Intake(
            store=self.store,
            mailbox=self.mailbox,
            clusters=self.clusters,
            executions=self.executions,
            head_nodes=self.head_nodes,
            announcer=self.announcer,
            **common,
        )
        alarms = Alarms(alarm_store=FakeAlarmStore(), mailbox=self.mailbox, **common)
        self.sweep = Sweep(
            store=self.store,
            registry=self.registry,
            listing=FakeListing(self.training),
            check=JobCheck(store=self.store, mailbox=self.mailbox, saves=FakeSaves(), **common),
            metrics=FakeMetrics(),
            marks=MemoryMarks(),
            alarms=alarms,
            executions=self.executions,
            intake=self.intake,
            clusters=SweepClusters(
                head_nodes=self.head_nodes, intake=self.intake, clock=self.clock, unheard=UnheardAttempts(**common)
            ),
            clock=self.clock,
        )
        self.orders = Orders(intake=self.intake, policies=FakePolicies(), alarms=alarms, **common)
        self.view = Clusters(head_nodes=self.head_nodes, registry=self.registry, clock=self.clock)
        self.head_nodes.heartbeat(CLUSTER)

    def show(self, **changes: Any) -> AttemptDoc:
        doc = AttemptDoc(
            attempt=FIRST,
            cluster=CLUSTER,
            slurm_job=4211,
            restart=0,
            state=SlurmState.RUNNING,
            seen_at=self.clock.now(),
            name="lm",
            nodes=("gpu-1", "gpu-2"),
            node_count=2,
            submitted_at=START - timedelta(hours=1),
            is_requeueable=True,
            mailbox="s3://runs/lm",
            spec="ab" * 32,
        )
        doc = replace(doc, **changes)
        self.head_nodes.show(doc)
        return doc

    def event(self, name: str) -> list[Outcome]:
        """A golden event comes in."""
        return [self.intake.receive(signal) for signal in parse(golden.load(name))]

    def join(self) -> Job:
        self.show()
        self.event("agent_slurm_job_running")
        return self.registry.get(FIRST)

    def ended(self, name: str) -> Signal:
        """A golden event of a start's end, of ours; the agent has written its document before it."""
        signal = replace(parse(golden.load(name))[0], attempt=FIRST)
        self.show(state=SlurmState(signal.evidence["state"]))
        return signal

    def nodes(self, **states: str) -> None:
        facts = tuple(
            NodeFacts(name=name.replace("_", "-"), state=state, instance_id=INSTANCE if name == "gpu_2" else None)
            for name, state in states.items()
        )
        self.head_nodes.node_docs[CLUSTER] = NodesDoc(cluster=CLUSTER, seen_at=self.clock.now(), nodes=facts)

    def open_incidents(self) -> list[Incident]:
        return [incident for incident, _ in self.store.list_open()]

    def later(self, *, heartbeat: bool = True, **span: float) -> None:
        self.clock.advance(timedelta(**span))
        if heartbeat:
            self.head_nodes.heartbeat(CLUSTER)

    def rounds(self, count: int) -> list[SweepFigures]:
        """So many sweeps, a minute apart: each Job and cluster has its turns."""
        swept = []
        for _ in range(count):
            swept.append(self.sweep.run())
            self.later(minutes=1)
        return swept


@pytest.fixture
def w() -> World:
    return World()


# ---- joining ---------------------------------------------------------------------------------------------------------


def test_a_commented_job_joins_on_its_first_event(w: World) -> None:
    job = w.join()
    assert (job.platform, job.name, job.current_attempt, job.mailbox) == (
        SLURM.name,
        "lm",
        FIRST,
        "s3://runs/lm",
    )
    assert (job.limits, w.announcer.notices) == ((), [])


def test_what_cannot_be_done_is_told_once_and_stands_on_the_job(w: World) -> None:
    w.show(cannot_resubmit=("it is an array job",))
    for name in ("agent_slurm_job_pending", "agent_slurm_job_running", "agent_slurm_job_running"):
        w.event(name)
    assert any("array job" in limit for limit in w.registry.get(FIRST).limits)
    assert [notice.severity for notice in w.announcer.notices] == ["warning"]
    assert "array job" in w.announcer.notices[0].text


@pytest.mark.parametrize(("user", "is_taken"), [("mallory", True), ("ml", False)])
def test_nobody_gets_the_mailbox_of_another_users_run(w: World, user: str, is_taken: bool) -> None:
    """We would write its fence and its orders there, and the other run would obey."""
    w.show(user="ml")
    w.event("agent_slurm_job_running")
    w.show(attempt=f"slurm.{CLUSTER}.99", slurm_job=99, user=user, mailbox="s3://runs/lm/")
    job = w.orders.register_slurm(cluster=CLUSTER, slurm_job=99, policy=None, mailbox=None)
    assert job.mailbox == ("" if is_taken else "s3://runs/lm")
    assert any("another user's" in limit for limit in job.limits) is is_taken


def test_a_job_that_nobody_wrote_a_comment_on_is_not_ours(w: World) -> None:
    with pytest.raises(NotOurs):
        w.event("agent_slurm_job_running")


def test_an_event_of_a_silent_cluster_comes_again(w: World) -> None:
    w.show()
    w.later(heartbeat=False, minutes=4)
    with pytest.raises(DependencyUnavailable):
        w.event("agent_slurm_job_running")


def test_a_job_is_registered_by_its_number_with_its_present_start(w: World) -> None:
    w.show(state=SlurmState.REQUEUED, successor=RESTART, requeued_by=EndedBy.SLURM)
    w.show(attempt=RESTART, restart=1)
    job = w.orders.register_slurm(cluster=CLUSTER, slurm_job=4211, policy=None, mailbox=None)
    assert (job.job_id, job.current_attempt, job.attempt_number) == (FIRST, RESTART, 2)
    again = w.orders.register_slurm(cluster=CLUSTER, slurm_job=4211, policy=None, mailbox=None)
    assert again == job


def test_a_job_that_the_agent_does_not_watch_says_how_it_can_join(w: World) -> None:
    with pytest.raises(UnknownEntity, match="comment=rekindle"):
        w.orders.register_slurm(cluster=CLUSTER, slurm_job=77, policy=None, mailbox=None)
    with pytest.raises(InvalidRequest, match="cluster"):
        w.orders.register_slurm(cluster="../x", slurm_job=77, policy=None, mailbox=None)
    with pytest.raises(DependencyUnavailable):
        w.orders.register_slurm(cluster="elsewhere", slurm_job=77, policy=None, mailbox=None)


# ---- what becomes of it ----------------------------------------------------------------------------------------------


def test_a_start_of_slurm_s_own_is_adopted_and_fenced(w: World) -> None:
    w.join()
    w.show(state=SlurmState.REQUEUED, successor=RESTART, requeued_by=EndedBy.SLURM)
    w.show(attempt=RESTART, restart=1, state=SlurmState.PENDING)
    w.event("agent_slurm_job_requeued_by_slurm")
    job = w.registry.get(FIRST)
    assert (job.current_attempt, job.attempt_number, job.active) == (RESTART, 2, True)
    assert w.mailbox.fences[FIRST] == (RESTART, 2, (FIRST,))
    assert [attempt.status for attempt in w.registry.attempts(FIRST)] == ["stopped", ""]
    assert w.open_incidents() == []


def test_what_a_cluster_s_queue_forgets_is_told_beside_a_job_s_own_limits_and_not_for_each_job(w: World) -> None:
    for attempt, is_requeueable, count in ((FIRST, True, 0), ("slurm.pretrain.4300", False, 2)):
        doc = w.show(attempt=attempt, slurm_job=int(attempt.rpartition(".")[2]), is_requeueable=is_requeueable)
        found = found_of(doc, bucket="stack", queue_losses=(QueueFact.WAITING_SINCE,))
        assert len(found.limits) == count, found.limits


def test_the_restart_s_own_event_adopts_it_too_and_an_older_one_changes_nothing(w: World) -> None:
    w.join()
    w.show(attempt=RESTART, restart=1, state=SlurmState.PENDING)
    w.event("agent_slurm_job_requeued_pending")
    assert w.registry.get(FIRST).current_attempt == RESTART
    w.event("agent_slurm_job_running")  # of the first start, late
    assert w.registry.get(FIRST).current_attempt == RESTART


@pytest.mark.parametrize("is_held", [True, False])
def test_a_start_that_is_held_in_its_queue_keeps_no_other_one_of_the_job_from_being_protected(
    w: World, is_held: bool
) -> None:
    w.join()
    w.show(state=SlurmState.REQUEUED, successor=RESTART, requeued_by=EndedBy.AGENT)
    w.show(attempt=RESTART, restart=1, state=SlurmState.PENDING, held=is_held)
    w.event("agent_slurm_job_requeued_pending")
    assert w.registry.get(FIRST).current_attempt == RESTART
    w.later(minutes=1)
    by_hand = f"slurm.{CLUSTER}.4300"
    doc = w.show(attempt=by_hand, slurm_job=4300, submitted_at=w.clock.now())
    job = w.intake.adopt(w.registry.get(FIRST), found_of(doc, bucket="stack"))
    assert job.current_attempt == (by_hand if is_held else RESTART), "one that waits for nodes will train"


def test_a_start_heard_of_before_the_one_it_follows_is_the_run_s_whose_attempt_that_submission_is(w: World) -> None:
    """A person has cancelled the run and submitted it again, and its Job has adopted that; Slurm puts it back twice."""
    job = w.join()
    w.show(state=SlurmState.CANCELLED)
    again = {"attempt": "slurm.pretrain.4300", "slurm_job": 4300, "restart": 0, "mailbox": job.mailbox}
    w.later(minutes=1)
    doc = w.show(**again, submitted_at=w.clock.now())
    job = w.intake.adopt(job, found_of(doc, bucket="stack"))
    third = w.show(**again | {"attempt": "slurm.pretrain.4300.r2", "restart": 2, "state": SlurmState.PENDING})
    assert w.intake.register(found_of(third, bucket="stack")).job_id == FIRST
    assert w.registry.get(FIRST).current_attempt == third.attempt
    elsewhere = again | {"attempt": "slurm.pretrain.4300.r3", "restart": 3, "mailbox": "s3://runs/elsewhere"}
    stranger = w.show(**elsewhere)
    assert w.intake.register(found_of(stranger, bucket="stack")).job_id == "slurm.pretrain.4300", "a remade cluster's"


@pytest.mark.parametrize("is_held", [True, False])
def test_what_is_submitted_by_hand_takes_the_place_of_a_start_that_is_held_and_of_none_that_waits(
    w: World, is_held: bool
) -> None:
    """A stop of ours has left the old one in the queue, held, and a person was paged."""
    job = w.join()
    w.show(state=SlurmState.PENDING, held=is_held)
    w.later(minutes=1)
    again = {"attempt": "slurm.pretrain.4300", "slurm_job": 4300, "restart": 0, "mailbox": job.mailbox}
    doc = w.show(**again, submitted_at=w.clock.now())
    assert w.intake.adopt(job, found_of(doc, bucket="stack")).current_attempt == (doc.attempt if is_held else FIRST)


def test_a_node_that_was_lost_is_trouble_also_where_the_next_start_was_heard_of_first(w: World) -> None:
    w.join()
    w.show(state=SlurmState.REQUEUED, successor=RESTART, requeued_by=EndedBy.SLURM)
    w.show(attempt=RESTART, restart=1, state=SlurmState.PENDING)
    w.event("agent_slurm_job_requeued_pending")
    assert w.registry.get(FIRST).current_attempt == RESTART
    lost = parse(golden.load("agent_slurm_job_requeued_by_slurm"))[0]
    lost = replace(lost, fault=FaultClass.NODE_LOST, triggers=True)
    assert w.intake.receive(lost).what is OutcomeKind.OPENED
    (incident,) = w.open_incidents()
    assert (incident.attempt, incident.attempt_number) == (FIRST, 1)
    w.store.record(
        replace(
            incident,
            phase=Phase.RECOVERED,
            closed_at=w.clock.now(),
            attempt=RESTART,
            resubmission=replace(incident.resubmission, tries=(_theirs(),)),
        ),
        expected_version=incident.version,
        token="t",
        absorbed=1,
        entry=TimelineEntry(at=w.clock.now(), phase=Phase.RECOVERED, rule="verify.passed", text=""),
        look_by=None,
    )
    again = replace(lost, dedupe_key="told once more")
    assert w.intake.receive(again).what is OutcomeKind.DROPPED, "it has been dealt with"


def _theirs() -> Try:
    return Try(number=2, name=RESTART, clone_of=FIRST, at=START, resume_step=Unknown("theirs"), is_theirs=True)


def test_a_new_job_with_the_number_of_an_old_one_is_left_alone_and_told(w: World) -> None:
    """A cluster was made anew under its old name: Slurm counts from 1 again."""
    old = w.join()
    w.later(hours=50)
    w.show(submitted_at=w.clock.now(), mailbox="s3://runs/other")
    for _ in range(2):
        with pytest.raises(NotOurs):
            w.event("agent_slurm_job_running")
    told = [notice for notice in w.announcer.notices if "is not protected" in notice.title]
    assert {notice.token for notice in told} == {f"another-run:{FIRST}:{w.clock.now().isoformat()}"}
    job = w.registry.get(FIRST)
    assert (job.active, job.mailbox) == (False, old.mailbox)


def test_the_same_job_is_known_again_whenever_it_speaks(w: World) -> None:
    w.join()
    w.later(hours=50)
    w.event("agent_slurm_job_running")
    assert w.registry.get(FIRST).active


def test_while_an_incident_is_open_its_workflow_adopts(w: World) -> None:
    w.join()
    w.show(state=SlurmState.NODE_FAIL)
    failed = parse(golden.load("agent_slurm_job_node_fail"))[0]
    w.intake.receive(replace(failed, attempt=FIRST, dedupe_key="x"))
    w.show(state=SlurmState.REQUEUED, successor=RESTART, requeued_by=EndedBy.SLURM)
    w.show(attempt=RESTART, restart=1, state=SlurmState.PENDING)
    w.event("agent_slurm_job_requeued_by_slurm")
    w.event("agent_slurm_job_requeued_pending")
    assert w.registry.get(FIRST).current_attempt == FIRST


@pytest.mark.parametrize(("state", "what"), [(SlurmState.CANCELLED, "stopped"), (SlurmState.COMPLETED, "completed")])
def test_a_run_that_its_user_ended_is_left_alone(w: World, state: SlurmState, what: str) -> None:
    w.join()
    name = "agent_slurm_job_cancelled_by_user" if state is SlurmState.CANCELLED else "agent_slurm_job_completed"
    assert w.intake.receive(w.ended(name)).what is OutcomeKind.DROPPED
    job = w.registry.get(FIRST)
    assert not job.active
    assert w.registry.attempts(FIRST)[0].status == what
    assert w.open_incidents() == []


def test_an_end_that_the_clusters_own_document_does_not_show_changes_nothing(w: World) -> None:
    """Another cluster's head node may put it on the bus."""
    w.join()
    before = w.registry.get(FIRST)
    for name in ("node_fail", "failed", "timeout", "gone", "preempted", "completed", "cancelled_by_user"):
        signal = replace(parse(golden.load(f"agent_slurm_job_{name}"))[0], attempt=FIRST)
        assert w.intake.receive(signal).what is OutcomeKind.DROPPED
    forged = parse(golden.load("agent_slurm_job_requeued_by_slurm"))[0]
    w.show(attempt="slurm.pretrain.77", slurm_job=77)
    evidence = {**forged.evidence, "successor": "slurm.pretrain.77"}
    assert w.intake.receive(replace(forged, attempt=FIRST, evidence=evidence)).what is OutcomeKind.DROPPED
    assert w.registry.get(FIRST) == before
    assert w.open_incidents() == []


def test_a_node_that_the_clusters_own_document_shows_in_service_is_left_alone(w: World) -> None:
    w.clusters.policies[CLUSTER] = "default"
    w.nodes(gpu_1="idle")
    for name in ("agent_slurm_node_down", "agent_slurm_node_fail_replace"):
        signal = parse(golden.load(name))[0]
        assert signal.fault is not None
        for node in ("gpu-1", "no-such-node"):
            with pytest.raises(NotOurs):
                w.intake.receive(replace(signal, node=node))
    assert w.open_incidents() == []


def test_an_event_of_a_cluster_that_has_no_agent_is_not_ours_and_does_not_come_again(w: World) -> None:
    signal = parse(golden.load("agent_slurm_job_running"))[0]
    with pytest.raises(NotOurs):
        w.intake.receive(replace(signal, cluster="made-up", attempt="slurm.made-up.1"))


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        ("agent_slurm_job_node_fail", FaultClass.NODE_LOST),
        ("agent_slurm_job_failed", FaultClass.SOFTWARE_CRASH),
        ("agent_slurm_job_timeout", FaultClass.PLANNED_END),
        ("agent_slurm_job_gone", FaultClass.JOB_MISSING),
    ],
)
def test_an_end_that_nobody_wanted_opens_an_incident(w: World, event: str, fault: FaultClass) -> None:
    w.join()
    signal = w.ended(event)
    assert signal.fault is fault
    assert w.intake.receive(signal).what is OutcomeKind.OPENED
    assert [(incident.job_id, incident.attempt) for incident in w.open_incidents()] == [(FIRST, FIRST)]


# ---- agents ----------------------------------------------------------------------------------------------------------


def test_an_agent_that_starts_gets_its_queue(w: World) -> None:
    w.head_nodes.queues.clear()
    for _ in range(2):
        assert w.event("agent_started")[0].what is OutcomeKind.DROPPED
    assert w.head_nodes.queues == {CLUSTER}


def test_an_answer_wakes_the_incident_that_ordered(w: World) -> None:
    w.join()
    w.intake.receive(w.ended("agent_slurm_job_failed"))
    incident = w.open_incidents()[0]
    w.store.look(incident.incident_id, generation=1, callback_id="cb-1", look_by=START)
    answer = parse(golden.load("agent_order_answered_done"))[0]
    answer = replace(answer, evidence={**answer.evidence, "incident_id": incident.incident_id})
    assert w.intake.receive(answer).what is OutcomeKind.JOINED
    assert w.executions.woken == [("cb-1", "order_answered")]
    assert w.intake.receive(answer).what is OutcomeKind.DUPLICATE
    with pytest.raises(NotOurs):
        w.event("agent_order_answered_refused")  # for an Incident of another stack


# ---- nodes -----------------------------------------------------------------------------------------------------------


def health(w: World, name: str = "sagemaker_node_health_replace") -> Outcome:
    return w.event(name)[0]


@pytest.mark.parametrize(
    "event", ["sagemaker_node_health_replace", "logs_batch_hma_slurm_xid79", "sagemaker_cluster_event_eks_node_health"]
)
def test_hyperpod_s_word_about_an_instance_finds_the_run_its_node_and_its_place(w: World, event: str) -> None:
    w.clusters.policies[CLUSTER] = "default"
    w.join()
    w.nodes(gpu_1="allocated", gpu_2="allocated")
    outcome = health(w, event)
    assert (outcome.what, outcome.job_id) == (OutcomeKind.OPENED, FIRST)
    by_job = {incident.job_id: incident for incident in w.open_incidents()}
    signal = w.store.load(by_job[FIRST].incident_id).inbox[0]
    assert (signal.attempt, signal.node, signal.fault) == (FIRST, "gpu-2", FaultClass.NODE_HARDWARE)
    assert (signal.evidence["instance_id"], signal.evidence["node_index"], signal.evidence["nodes"]) == (INSTANCE, 1, 2)
    node = by_job[None]
    assert (node.cluster, node.node, node.job_id) == (CLUSTER, "gpu-2", None)
    assert health(w, event).what is OutcomeKind.DUPLICATE
    assert len(w.open_incidents()) == 2


def announced(kind: SignalKind, **evidence: object) -> Signal:
    return Signal(
        kind=kind,
        source=SignalSource.HEALTH,
        occurred_at=START,
        dedupe_key=kind,
        summary="the instance is retired",
        node=INSTANCE,
        fault=FaultClass.PLANNED_END,
        triggers=True,
        evidence={"code": "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED", **evidence},
    )


def test_an_announced_end_of_an_instance_reaches_the_run_on_its_node(w: World) -> None:
    w.join()
    w.nodes(gpu_1="allocated", gpu_2="allocated")
    far = announced(SignalKind.HEALTH_NOTICE, starts_at=(START + timedelta(days=9)).isoformat())
    outcome = w.intake.receive(far)
    assert (outcome.what, outcome.job_id) == (OutcomeKind.OPENED, FIRST)
    incident = w.open_incidents()[0]
    assert [(incident.job_id, incident.node) for incident in w.open_incidents()] == [
        (FIRST, None)
    ]  # the node is not repaired for it
    assert w.store.load(incident.incident_id).inbox[0].node == "gpu-2"


def test_an_announced_end_of_an_instance_that_no_cluster_has_concerns_nobody(w: World) -> None:
    w.join()
    w.nodes(gpu_1="allocated")
    with pytest.raises(NotOurs):
        w.intake.receive(announced(SignalKind.SPOT_INTERRUPTION, notice_s=120))


def test_a_node_without_a_run_of_ours_has_its_own_incident_alone(w: World) -> None:
    w.clusters.policies[CLUSTER] = "default"
    w.show(nodes=("gpu-1",))
    w.event("agent_slurm_job_running")
    w.nodes(gpu_1="allocated", gpu_2="idle")
    assert health(w).what is OutcomeKind.OPENED
    assert [(incident.job_id, incident.node) for incident in w.open_incidents()] == [(None, "gpu-2")]


def test_without_a_tag_on_the_cluster_the_run_is_told_and_its_node_has_the_agents_own_word(w: World) -> None:
    """What the health agent recommends stands in the event alone: the run would hand its node on as a suspect."""
    w.join()
    w.nodes(gpu_2="allocated")
    assert health(w).job_id == FIRST
    assert sorted((incident.job_id or "", incident.node or "") for incident in w.open_incidents()) == [
        ("", "gpu-2"),
        (FIRST, ""),
    ]


def test_a_cluster_without_an_agent_is_treated_as_before(w: World) -> None:
    w.clusters.policies[CLUSTER] = "default"
    w.head_nodes.agents.clear()
    assert health(w).what is OutcomeKind.OPENED
    assert [(incident.job_id, incident.cluster, incident.node) for incident in w.open_incidents()] == [
        (None, CLUSTER, None)
    ]


def test_an_instance_that_the_map_does_not_hold_is_the_cluster_s(w: World) -> None:
    w.clusters.policies[CLUSTER] = "default"
    w.join()
    w.nodes(gpu_1="allocated")
    health(w)
    assert [(incident.job_id, incident.node) for incident in w.open_incidents()] == [(None, None)]


def test_two_signals_about_one_node_are_one_incident_whoever_speaks(w: World) -> None:
    w.clusters.policies[CLUSTER] = "default"
    w.nodes(gpu_2="down")
    health(w)
    down = replace(parse(golden.load("agent_slurm_node_down"))[0], node="gpu-2")
    suspect = Signal(
        kind=SignalKind.NODE_SUSPECT,
        source=SignalSource.AGENT,
        occurred_at=START,
        dedupe_key="node-suspect:x",
        summary="gpu-2: slow",
        cluster=CLUSTER,
        node="gpu-2",
        fault=FaultClass.NODE_HARDWARE,
        evidence={"job_id": FIRST},
    )
    assert [w.intake.receive(one).what for one in (down, suspect)] == [OutcomeKind.JOINED, OutcomeKind.JOINED]
    assert len(w.open_incidents()) == 1


def test_a_suspicion_of_a_protected_run_needs_no_tag(w: World) -> None:
    w.join()
    suspect = Signal(
        kind=SignalKind.NODE_SUSPECT,
        source=SignalSource.AGENT,
        occurred_at=START,
        dedupe_key="node-suspect:x",
        summary="gpu-2: slow",
        cluster=CLUSTER,
        node="gpu-2",
        fault=FaultClass.NODE_HARDWARE,
        evidence={"job_id": FIRST},
    )
    assert w.intake.receive(suspect).what is OutcomeKind.OPENED
    assert [(incident.job_id, incident.node, incident.policy_name) for incident in w.open_incidents()] == [
        (None, "gpu-2", "default")
    ]


def test_news_of_a_node_joins_its_incident_and_opens_none(w: World) -> None:
    w.clusters.policies[CLUSTER] = "default"
    w.nodes(gpu_1="idle")
    assert w.event("agent_slurm_node_idle")[0].what is OutcomeKind.DROPPED
    w.nodes(gpu_1="down")
    w.event("agent_slurm_node_down")
    assert w.event("agent_slurm_node_idle")[0].what is OutcomeKind.JOINED
    assert len(w.open_incidents()) == 1


def test_word_of_a_fault_that_comes_after_the_crash_reaches_the_run(w: World) -> None:
    w.join()
    w.nodes(gpu_2="idle")
    w.show(state=SlurmState.FAILED, ended_at=w.clock.now())
    w.later(minutes=29)
    assert health(w).job_id == FIRST
    w.later(minutes=2)
    with pytest.raises(NotOurs):  # then it is about the node alone, and nobody asked us to look after those
        w.event("logs_batch_hma_slurm_xid79")


# ---- the sweep -------------------------------------------------------------------------------------------------------


def test_an_end_whose_event_was_lost_is_found_in_the_job_s_turn(w: World) -> None:
    w.join()
    w.show(state=SlurmState.NODE_FAIL, reason="NodeDown")
    w.rounds(31)
    incident = w.open_incidents()[0]
    signal = w.store.load(incident.incident_id).inbox[0]
    assert (signal.kind, signal.fault) == (SignalKind.ATTEMPT_STATE, FaultClass.NODE_LOST)
    event = replace(parse(golden.load("agent_slurm_job_node_fail"))[0], attempt=FIRST)
    assert w.intake.receive(replace(event, dedupe_key=signal.dedupe_key)).what is OutcomeKind.DUPLICATE
    assert event.dedupe_key.replace("4214", "4211") == signal.dedupe_key  # event and sweep are one fact


def test_a_job_that_is_neither_queued_nor_running_is_seen(w: World) -> None:
    w.join()
    w.head_nodes.attempts.clear()
    w.rounds(31)
    assert [incident.job_id for incident in w.open_incidents()] == [FIRST]
    assert w.store.load(w.open_incidents()[0].incident_id).inbox[0].fault is FaultClass.JOB_MISSING


def test_a_lost_requeue_is_adopted_by_the_sweep(w: World) -> None:
    w.join()
    w.show(state=SlurmState.REQUEUED, successor=RESTART, requeued_by=EndedBy.SLURM)
    w.show(attempt=RESTART, restart=1)
    w.rounds(31)
    job = w.registry.get(FIRST)
    assert (job.current_attempt, job.active) == (RESTART, True)
    assert w.open_incidents() == []


def test_a_start_of_which_no_event_has_told_is_found_by_the_sweep(w: World) -> None:
    """Also on a cluster where nothing is protected any more; what ended long ago is history."""
    w.show()
    w.show(attempt="slurm.ml.7", slurm_job=7, state=SlurmState.FAILED, ended_at=w.clock.now() - timedelta(days=2))
    w.rounds(11)
    assert [job.job_id for job in w.registry.active()] == [FIRST]
    assert w.open_incidents() == []


def test_a_start_that_failed_unheard_opens_its_incident(w: World) -> None:
    w.show(state=SlurmState.FAILED, detail="RuntimeError: boom", ended_at=w.clock.now())
    w.rounds(11)
    assert [incident.job_id for incident in w.open_incidents()] == [FIRST]


def test_the_end_of_a_start_that_no_event_told_is_read_when_its_next_one_is_heard_of(w: World) -> None:
    w.join()
    w.show(state=SlurmState.NODE_FAIL, reason="NodeDown", successor=RESTART, requeued_by=EndedBy.SLURM)
    w.show(attempt=RESTART, restart=1, state=SlurmState.PENDING)
    w.event("agent_slurm_job_requeued_pending")
    (incident,) = w.open_incidents()
    assert (incident.attempt, w.registry.get(FIRST).current_attempt) == (FIRST, RESTART)
    assert w.store.load(incident.incident_id).inbox[0].fault is FaultClass.NODE_LOST
    w.event("agent_slurm_job_requeued_pending")
    assert len(w.open_incidents()) == 1


def test_a_silent_agent_is_one_incident_of_its_cluster_and_is_told_once(w: World) -> None:
    w.join()
    for _ in range(40):
        w.sweep.run()
        w.clock.advance(timedelta(minutes=1))
    found = w.open_incidents()
    assert [(incident.cluster, incident.job_id, incident.node) for incident in found] == [(CLUSTER, None, None)]
    inbox = w.store.load(found[0].incident_id).inbox
    assert [signal.kind for signal in inbox] == [SignalKind.AGENT_NEWS]
    assert "silent since" in inbox[0].summary
    assert w.registry.get(FIRST).active  # nothing is concluded about its run


def test_a_silent_agent_whose_standby_took_over_is_no_alarm(w: World) -> None:
    """The first head node dies in the third minute; the second one's agent writes the heartbeat from then on."""
    w.join()
    for minute in range(30):
        w.sweep.run()
        w.clock.advance(timedelta(minutes=1))
        host, epoch = ("ctl1", 1) if minute < 3 else ("ctl2", 2)
        if minute not in (3, 4):  # until the lease is over, and S3 has answered
            w.head_nodes.heartbeat(CLUSTER, agent_id=f"{host}-1", host=host, epoch=epoch)
    assert w.open_incidents() == []
    one = w.view.one(CLUSTER)
    assert (one["unknown"], one["active_host"], one["lease_epoch"]) == ("", "ctl2", 2)


def test_a_standby_that_did_not_take_over_is_named(w: World) -> None:
    w.join()
    w.head_nodes.heartbeat(CLUSTER, host="ctl1", epoch=3, standbys=("ctl2-77",))
    for _ in range(15):
        w.sweep.run()
        w.clock.advance(timedelta(minutes=1))
    (incident,) = w.open_incidents()
    summary = w.store.load(incident.incident_id).inbox[0].summary
    assert "the agent of lab on ctl1 is silent since" in summary.replace(CLUSTER, "lab")
    assert "and ctl2-77 has not taken over" in summary
    assert w.view.one(CLUSTER)["standbys"] == ["ctl2-77"]


def test_an_agent_that_cannot_read_slurm_is_told_apart(w: World) -> None:
    w.join()
    read_at = w.clock.now()
    for _ in range(15):
        w.sweep.run()
        w.clock.advance(timedelta(minutes=1))
        w.head_nodes.heartbeat(CLUSTER, read_at=read_at)
    assert "could not read its scheduler" in w.store.load(w.open_incidents()[0].incident_id).inbox[0].summary


def test_a_short_silence_is_nobody_s_business(w: World) -> None:
    w.join()
    for _ in range(9):
        w.sweep.run()
        w.clock.advance(timedelta(minutes=1))
    assert w.open_incidents() == []


def test_a_bad_node_whose_event_was_lost_is_found(w: World) -> None:
    w.clusters.policies[CLUSTER] = "default"
    w.show(nodes=("gpu-1",))
    w.event("agent_slurm_job_running")
    w.nodes(gpu_1="allocated", gpu_2="down")
    w.rounds(21)
    assert [(incident.cluster, incident.node) for incident in w.open_incidents()] == [(CLUSTER, "gpu-2")]
    assert len(w.store.load(w.open_incidents()[0].incident_id).inbox) == 1


# ---- for people ------------------------------------------------------------------------------------------------------


def test_a_cluster_is_shown_with_its_agent_nodes_and_runs(w: World) -> None:
    w.join()
    w.nodes(gpu_1="allocated", gpu_2="down")
    w.clock.advance(timedelta(seconds=70))
    one = w.view.one(CLUSTER)
    assert (one["unknown"], one["heartbeat_age_s"], one["node_states"]) == ("", 70, {"allocated": 1, "down": 1})
    assert [node["instance_id"] for node in one["nodes"]] == [None, INSTANCE]
    assert [job["job_id"] for job in one["jobs"]] == [FIRST]
    w.clock.advance(timedelta(minutes=5))
    brief = w.view.listing()[0]
    assert "silent since" in brief["unknown"]
    assert (brief["node_states"], brief["jobs_active"]) == (None, 1)  # unknown, which is not none


def test_a_cluster_that_nobody_knows_is_not_found(w: World) -> None:
    with pytest.raises(UnknownEntity):
        w.view.one("nowhere")
    with pytest.raises(InvalidRequest):
        w.view.one("../x")


def test_training_jobs_go_on_as_before(w: World) -> None:
    w.training.put("lm-7b", AttemptStatus.RUNNING, mailbox="s3://box/lm")
    job = w.orders.register(training_job="lm-7b", policy=None, mailbox=None)
    assert (job.platform, job.limits, job.attempt_number) == (TRAINING_JOB.name, (), 1)
