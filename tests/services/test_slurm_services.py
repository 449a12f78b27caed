"""What looks read and actions do for a Job on Slurm, each twice: the second time changes nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from chalicelib.domain.model.action import (
    Action,
    ActionResult,
    AdoptAttempt,
    CordonNode,
    Done,
    ExcludeNodes,
    ReportNode,
    ResizeJob,
    ResubmitJob,
    StopJob,
)
from chalicelib.domain.model.errors import DependencyUnavailable
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.signal import SignalKind
from chalicelib.domain.model.start_view import Submission
from chalicelib.domain.policy.document import DEFAULT_POLICY
from chalicelib.services.observe.shared_mailbox import LINK_SETTLES, NextLink, next_link
from chalicelib.services.perform.cluster_orders import ANSWER_LATE, CORDON_VALID, MAX_TRIES
from rekindle.protocol.cluster.documents import EndedBy, SlurmState
from rekindle.protocol.cluster.orders import Order, OrderResult, Outcome, Verb
from rekindle.protocol.signals import FaultClass
from tests.services.slurm_world import ModelHeadNodes, SlurmWorld


@pytest.fixture
def w() -> SlurmWorld:
    made = SlurmWorld()
    for _ in range(4):
        made.breathe()
    return made


def opened(w: SlurmWorld) -> Incident:
    w.claim(w.job.attempt, FaultClass.NODE_HARDWARE, node="ip-2")
    w.deliver(w.air.pop())
    return w.last


def act(w: SlurmWorld, incident: Incident, action: Action) -> ActionResult:
    return w.perform.act(action, incident=incident, policy=DEFAULT_POLICY, token="t")


def answered(w: SlurmWorld, order: Order, outcome: Outcome) -> None:
    w.model.answers[order.token] = OrderResult(
        token=order.token, verb=order.verb, cluster=order.cluster, outcome=outcome, at=w.clock.now(), detail="so it is"
    )
    w.head.publish()


class Away(ModelHeadNodes):
    """A queue that cannot be reached."""

    def order(self, order: Order) -> OrderResult | None:
        raise DependencyUnavailable(f"no queue takes {order.token}")


def test_an_adopted_start_is_fenced_and_registered_once(w: SlurmWorld) -> None:
    incident, first = opened(w), w.job.attempt
    w.model.put_back(w.job, by=EndedBy.SLURM)
    adopt = AdoptAttempt(name=w.job.attempt, number=2, clone_of=first, why="Slurm put the job back")
    assert [act(w, incident, adopt).done for _ in range(2)] == [Done.DONE, Done.ALREADY]
    attempts = w.registry.attempts(w.job_id)
    assert [(attempt.name, attempt.number, attempt.incident_id) for attempt in attempts] == [
        (first, 1, None),
        (w.job.attempt, 2, None),
    ]
    assert w.mailbox.fences[w.job_id][:2] == (w.job.attempt, 2)
    late = AdoptAttempt(name=first, number=1, clone_of=first, why="woken up late")
    assert act(w, incident, late).done is Done.REFUSED
    assert w.registry.get(w.job_id).current_attempt == w.job.attempt


def test_a_cordon_is_one_order_until_it_is_answered_and_after(w: SlurmWorld) -> None:
    incident = opened(w)
    cordon = CordonNode(cluster="ml", node="ip-2", why="broken")
    assert [act(w, incident, cordon).done for _ in range(2)] == [Done.PENDING, Done.PENDING]
    w.head.work(twice=True)
    w.head.publish()
    assert [act(w, incident, cordon).done for _ in range(2)] == [Done.DONE, Done.DONE]
    assert [order.verb for order in w.model.executed] == [Verb.DRAIN]
    assert w.model.node_facts["ip-2"].reason == f"rekindle:{incident.incident_id}"


def test_a_cordon_whose_end_is_not_known_is_ordered_again_under_the_next_number(w: SlurmWorld) -> None:
    incident = opened(w)
    cordon = CordonNode(cluster="ml", node="ip-2", why="broken")
    assert act(w, incident, cordon).done is Done.PENDING
    [first] = w.head.first.values()
    answered(w, first, Outcome.FAILED)
    w.head.queue.clear()
    assert [act(w, incident, cordon).done for _ in range(2)] == [Done.PENDING, Done.PENDING]
    assert len(w.head.first) == 2
    w.head.work()
    w.head.publish()
    assert act(w, incident, cordon).done is Done.DONE
    assert [order.verb for order in w.model.executed] == [Verb.DRAIN]


def test_an_order_that_expired_unanswered_is_given_again_and_a_refusal_is_not(w: SlurmWorld) -> None:
    incident = opened(w)
    cordon = CordonNode(cluster="ml", node="ip-2", why="broken")
    act(w, incident, cordon)
    w.head.queue.clear()  # it never arrived
    w.clock.advance(CORDON_VALID + ANSWER_LATE + timedelta(seconds=1))
    assert act(w, incident, cordon).done is Done.PENDING
    _, second = w.head.first.values()
    answered(w, second, Outcome.REFUSED)
    assert [act(w, incident, cordon).done for _ in range(2)] == [Done.REFUSED, Done.REFUSED]
    assert len(w.head.first) == 2


def test_an_order_that_always_fails_is_not_given_for_ever(w: SlurmWorld) -> None:
    incident = opened(w)
    cordon = CordonNode(cluster="ml", node="ip-2", why="broken")
    for _ in range(3 * MAX_TRIES):
        result = act(w, incident, cordon)
        newest = list(w.head.first.values())[-1]
        answered(w, newest, Outcome.FAILED)
    assert result.done is Done.UNAVAILABLE
    assert len(w.head.first) == MAX_TRIES


def test_an_exclusion_is_one_order_per_list(w: SlurmWorld) -> None:
    incident = opened(w)
    w.model.put_back(w.job, by=EndedBy.USER, held=True)
    for nodes in (("ip-1",), ("ip-1",), ()):
        act(w, incident, ExcludeNodes(attempt=w.job.attempt, handle="1", nodes=nodes, why=""))
    w.head.work()
    assert [order.exclude for order in w.model.executed] == [("ip-1",), ()]


def test_a_job_is_made_smaller_by_one_order_and_not_below_its_share_of_the_first_start(w: SlurmWorld) -> None:
    incident = opened(w)
    w.job.min_nodes = 1
    first = w.job.wants
    w.model.put_back(w.job, by=EndedBy.USER)
    resize = ResizeJob(attempt=w.job.attempt, handle=str(w.job.slurm_job), nodes_min=1, nodes_max=first, why="")
    assert [act(w, incident, resize).done for _ in range(2)] == [Done.PENDING, Done.PENDING]
    w.head.work()
    w.head.publish()
    assert act(w, incident, resize).done is Done.DONE
    assert [(order.verb, order.nodes_min, order.nodes_max) for order in w.model.executed] == [(Verb.SHRINK, 1, first)]
    assert act(w, incident, replace(resize, nodes_max=first - 1)).done is Done.REFUSED


def test_a_node_is_reported_as_one_fact_per_incident(w: SlurmWorld) -> None:
    incident = opened(w)
    report = ReportNode(cluster="ml", node="ip-2", instance_id="i-1", why="broken", evidence={"attempt": w.job.attempt})
    assert [act(w, incident, report).done for _ in range(2)] == [Done.DONE, Done.DONE]
    told = w.handed_on.signals
    assert len({signal.dedupe_key for signal in told}) == 1
    assert (told[0].kind, told[0].cluster, told[0].node, told[0].attempt) == (
        SignalKind.NODE_SUSPECT,
        "ml",
        "ip-2",
        None,
    )
    assert told[0].evidence["instance_id"] == "i-1"


def test_without_an_agent_or_an_intake_nothing_is_done_about_nodes(w: SlurmWorld) -> None:
    incident = opened(w)
    w.perform = replace(w.perform, head_nodes=None, intake=None)
    cordon = CordonNode(cluster="ml", node="ip-2", why="")
    report = ReportNode(cluster="ml", node="ip-2", instance_id=None, why="", evidence={})
    assert [act(w, incident, one).done for one in (cordon, report)] == [Done.REFUSED, Done.REFUSED]


def test_a_stop_is_not_answered_before_the_agent_has_answered(w: SlurmWorld) -> None:
    incident = opened(w)
    stop = StopJob(attempt=w.job.attempt, why="", hold=True)
    assert act(w, incident, stop).done is Done.PENDING
    w.head.work()
    w.head.publish()
    assert act(w, incident, stop).done is Done.ALREADY
    assert w.job.held


def test_a_look_reads_the_successor_and_the_nodes_that_matter(w: SlurmWorld) -> None:
    incident = opened(w)
    seen = w.look.observe(
        incident.incident_id, generation=1, callback_id="c", quiet_limit=DEFAULT_POLICY.timing.look_max
    )[1]
    assert isinstance(seen.successor, Unknown)
    assert isinstance(seen.nodes, Known)
    assert [facts.name for facts in seen.nodes.value.facts] == ["ip-2"]  # the one that the new Signal names
    w.lose("ip-1")
    w.head.publish()
    seen = w.look.observe(
        incident.incident_id, generation=1, callback_id="c", quiet_limit=DEFAULT_POLICY.timing.look_max
    )[1]
    assert isinstance(seen.successor, Known)
    assert seen.successor.value.name == w.job.attempt
    assert isinstance(seen.nodes, Known)
    assert [facts.name for facts in seen.nodes.value.facts] == ["ip-1", "ip-2"]
    assert seen.current == w.registry.get(w.job_id).current_attempt
    w.head.is_silent = True
    seen = w.look.observe(
        incident.incident_id, generation=1, callback_id="c", quiet_limit=DEFAULT_POLICY.timing.look_max
    )[1]
    assert isinstance(seen.attempt, Unknown)
    assert isinstance(seen.nodes, Unknown)


def test_an_incident_of_an_old_job_never_takes_the_new_one_of_its_number_for_it(w: SlurmWorld) -> None:
    w.claim(w.job_id, FaultClass.HANG)
    w.deliver_all()
    w.job.submitted_at = w.clock.now() + timedelta(hours=50)
    w.tick(50 * 3600)
    w.head.publish()
    for _ in range(20):
        w.breathe(60)
    assert w.model.executed == []
    assert {incident.outcome for incident in w.incidents} == {"job.gone"}
    assert w.job.state is SlurmState.RUNNING


def test_a_start_that_somebody_else_let_go_is_told_where_to_resume_while_it_waits(w: SlurmWorld) -> None:
    w.model.put_back(w.job, by=EndedBy.AGENT, held=True)
    w.job.held = False  # `scontrol release` by its user
    w.head.publish()
    name = w.job.attempt
    action = ResubmitJob(
        clone_of=w.job_id,
        number=2,
        name=name,
        resume_step=Known(10),
        resume_root="s3://box/lm/10",
        resume_manifest="s3://box/lm/m-10",
        skips=(),
        why="loss_spike",
        goes_back=True,
        how=Submission.REQUEUE,
    )
    job = w.registry.get(w.job_id)
    done = w.slurm.resubmit(action, job=job, policy=w.policy, incident_id="inc-1")
    assert done.done is Done.ALREADY
    assert w.mailbox.plans[name].resume.step == 10


@pytest.mark.parametrize("waits", [False, True], ids=["the next link runs", "the next link still waits"])
def test_a_chain_s_next_link_and_our_new_start_never_train_in_one_mailbox(w: SlurmWorld, waits: bool) -> None:
    """One that began beside the run is another run; one that still waits begins no sooner than we let it."""
    link = w.model.submit(mailbox="s3://box/lm", held=waits)
    w.tick(1)  # one that runs begins beside the run
    w.tick(599)
    w.head.publish()
    found = w.slurm.find(link.attempt)
    assert found is not None
    w.intake.register(found)
    w.crash()
    for _ in range(60):
        w.breathe(60)
    (incident,) = w.incidents
    if waits:
        assert incident.outcome == "verify.passed"
        return
    assert incident.outcome == "resubmit.refused"
    assert w.live == []
    assert any(f"{link.attempt} trains in the same mailbox" in notice.text for notice in w.announcer.notices)


def link_of(w: SlurmWorld, job: Job) -> NextLink | None:
    return next_link(
        job,
        f"{w.job_id}.r1",
        after=w.job_id,
        registry=w.registry,
        scheduler=w.slurm,
        mailbox=w.mailbox,
        now=w.clock.now(),
    )


def test_a_mailbox_that_only_the_monitor_names_is_the_runs_all_the_same(w: SlurmWorld) -> None:
    """`rekindle.start(mailbox=...)`: neither the job's comment nor its environment says it."""
    link = w.model.submit(mailbox="s3://box/lm")
    w.tick(600)
    w.head.publish()
    found = w.slurm.find(link.attempt)
    assert found is not None
    w.intake.register(found)
    w.crash()
    job = replace(w.registry.get(w.job_id), mailbox="")
    w.mailbox.heartbeats[w.job_id] = replace(w.slurm.describe(w.job_id), heartbeat_at=w.clock.now())
    w.mailbox.roots[w.job_id] = "s3://box/another"
    assert link_of(w, job) is None
    w.mailbox.roots[w.job_id] = "s3://box/lm"
    named = link_of(w, job)
    assert named is not None
    assert named.name == link.attempt


def test_a_link_that_may_begin_now_is_waited_for(w: SlurmWorld) -> None:
    link = w.model.submit(mailbox="s3://box/lm", wants=9)
    w.head.publish()
    found = w.slurm.find(link.attempt)
    assert found is not None
    w.intake.register(found)
    w.tick(600)
    w.crash()
    link.reason = "Dependency"
    w.head.publish()
    job = w.registry.get(w.job_id)

    def asked() -> NextLink | None:
        return link_of(w, job)

    with pytest.raises(DependencyUnavailable):
        asked()
    w.clock.advance(LINK_SETTLES)
    assert asked() is None
    link.reason = "Priority"
    w.head.publish()
    assert asked() == NextLink(link.attempt, takes_over=True)


@pytest.mark.parametrize("is_link", [False, True], ids=["submitted again", "a link of a chain"])
def test_a_second_submission_beside_a_run_is_told_as_it_is_registered(w: SlurmWorld, is_link: bool) -> None:
    second = w.model.submit(mailbox="s3://box/lm", wants=9)
    w.tick(60)
    second.reason = "Dependency" if is_link else "Resources"
    w.head.publish()
    found = w.slurm.find(second.attempt)
    assert found is not None
    registered = w.intake.register(found)
    assert any(w.job_id in limit for limit in registered.limits) is not is_link
