"""Two agents of one cluster, each with its own state directory and the whole of its core, over the embedded cloud."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from localcloud.cloud import STACK, Cloud
from rekindle.protocol.cluster.documents import AgentDoc, AttemptDoc, SlurmState
from rekindle.protocol.cluster.lease import LeaseDoc, lease_key
from rekindle.protocol.cluster.names import agent_key, answer_key, attempt_key, order_key, queue_name
from rekindle.protocol.cluster.orders import Order, OrderResult, Outcome, Signal, Verb
from rekindle.slurm_agent.base.aws import Clients
from rekindle.slurm_agent.base.ports import NewsType, NotHolder, Reading
from rekindle.slurm_agent.base.settings import Settings
from rekindle.slurm_agent.copies.kept import SpecFolder
from rekindle.slurm_agent.process import Agent
from rekindle.slurm_agent.publishing.outbox import Outbox
from rekindle.slurm_agent.reading.run import Runner
from rekindle.slurm_agent.slurm.build import AgentContext, Parts
from rekindle.slurm_agent.takeover import others_on, wait_for_lease
from tests.agent.ctld import START, Ctld, job
from tests.agent.test_lease import Store
from tests.agent.world import BUCKET, CLUSTER, ManualClock, Network, Seen, empty, unwritten

AWAY = EndpointConnectionError(endpoint_url="https://s3")
ATTEMPT = f"slurm.{CLUSTER}.7"
SIGNAL, CANCEL = "signal 7 USR1", "cancel 7"


class Head:
    """One head node's agent, pass by pass. Both see the same slurmctld."""

    def __init__(self, name: str, site: Site, folder: Path) -> None:
        self.site = site
        folder.mkdir()
        self.settings = Settings.read(
            {"REKINDLE_BUCKET": BUCKET, "REKINDLE_CLUSTER": CLUSTER}, {"state_dir": str(folder)}
        )
        self.s3 = Network(site.store)
        self.clients = Clients(
            sqs=Network(site.cloud.client("sqs")),
            s3=self.s3,
            events=Network(site.cloud.client("events")),
            lease=self.s3,
        )
        self.watcher = Seen(site.ctld)
        self.agent: Agent | None = None

    def try_(self) -> bool:
        """Whether it acts now."""
        lease = wait_for_lease(self.settings, self.clients, self.site.clock, threading.Event(), is_once=True)
        if lease is not None:
            self.agent = Agent(
                settings=self.settings,
                clients=self.clients,
                clock=self.site.clock,
                build=self._build,
                guard_fd=None,
                lease=lease,
            )
        return lease is not None

    def _build(self, ground: AgentContext) -> Parts:
        assert isinstance(ground.memory, Outbox)
        self.ground = ground
        return Parts(slurm=self.site.ctld, watcher=self.watcher, kept=SpecFolder())

    @property
    def acting(self) -> Agent:
        assert self.agent is not None
        return self.agent

    def run_once(self) -> None:
        self.acting.orders.poll(0)
        self.acting.executor.work()
        self.acting.publisher.run_once()


class Site:
    def __init__(self, cloud: Cloud, folder: Path) -> None:
        empty(cloud)
        self.cloud = cloud
        self.clock = ManualClock()
        self.store = Store(cloud.client("s3"), self.clock)
        self.ctld = Ctld()
        self.url = cloud.client("sqs").create_queue(QueueName=queue_name(STACK, CLUSTER))["QueueUrl"]
        self.a, self.b = Head("ctl1", self, folder / "a"), Head("ctl2", self, folder / "b")

    def read(self, key: str) -> bytes:
        return bytes(self.store.get_object(Bucket=BUCKET, Key=key)["Body"].read())

    def order(self, verb: Verb, token: str = "order-1", **changes: Any) -> Order:  # noqa: S107
        now = self.clock.now()
        order = Order(
            token=token, verb=verb, cluster=CLUSTER, issued_at=now, expires_at=now + timedelta(minutes=30), **changes
        )
        self.store.put_object(Bucket=BUCKET, Key=order_key(CLUSTER, token), Body=order.to_json())
        return order

    def send(self, order: Order) -> None:
        self.cloud.client("sqs").send_message(QueueUrl=self.url, MessageBody=order.to_json().decode())

    def answer(self, token: str = "order-1") -> OrderResult:  # noqa: S107
        return OrderResult.from_json(self.read(answer_key(CLUSTER, token)))

    def over_to_b(self) -> None:
        """A is gone, and B takes over when its term is over."""
        assert not self.b.try_()
        self.clock.forward(183)
        assert self.b.try_()


@pytest.fixture
def site(cloud: Cloud, tmp_path: Path) -> Site:
    made = Site(cloud, tmp_path)
    assert made.a.try_()
    return made


def test_a_signal_that_was_begun_is_not_sent_again_by_the_next_agent(site: Site) -> None:
    """A second one could end the run. Nothing in Slurm tells that there was a first."""
    site.ctld.put(job(7, signal="USR1"))
    order = site.order(Verb.SIGNAL, attempt=ATTEMPT, slurm_job=7, signal=Signal.USR1)
    site.a.acting.executor.take(order.to_json().decode())
    site.a.acting.executor.work()
    assert site.ctld.commands == [SIGNAL]  # and it is killed before it can say so
    site.over_to_b()
    site.send(order)
    site.b.run_once()
    assert site.answer().outcome is Outcome.FAILED
    assert "it is not known whether the signal was sent" in site.answer().detail
    assert site.ctld.commands == [SIGNAL]


def test_what_was_begun_is_settled_without_its_message(site: Site) -> None:
    site.ctld.put(job(7))
    order = site.order(Verb.CANCEL, attempt=ATTEMPT, slurm_job=7)
    site.a.acting.executor.take(order.to_json().decode())
    site.a.acting.executor.work()
    site.over_to_b()
    site.b.acting.executor.work()
    site.b.acting.publisher.run_once()
    assert site.answer().outcome is Outcome.DONE
    assert site.ctld.commands == [CANCEL]


def test_what_another_agent_did_is_no_users_doing(site: Site) -> None:
    """Else the cancelled job would count as its user's wish, and be left alone."""
    site.ctld.put(job(7))
    order = site.order(Verb.CANCEL, attempt=ATTEMPT, slurm_job=7)
    site.send(order)
    site.a.run_once()
    assert site.answer().outcome is Outcome.DONE
    site.over_to_b()
    assert site.b.acting.journal.has_ended(ATTEMPT)
    entry = site.b.acting.journal.find(order.token)
    assert entry is not None
    assert entry.answer == site.answer()


def test_an_order_that_was_only_taken_is_the_next_agents(site: Site) -> None:
    """Its message comes again; the former holder's journal knows of an answer when it has the lease again."""
    site.ctld.put(job(7, state=SlurmState.COMPLETING))
    order = site.order(Verb.CANCEL, attempt=ATTEMPT, slurm_job=7)
    site.a.acting.executor.take(order.to_json().decode())
    site.a.acting.executor.work()  # not yet: it is completing
    site.over_to_b()
    site.ctld.put(job(7))
    site.send(order)
    site.b.run_once()
    answered = site.answer()
    assert answered.outcome is Outcome.DONE
    site.clock.forward(4000)
    assert site.a.try_()
    site.a.run_once()
    assert site.answer() == answered, "the expired order was answered a second time"
    assert site.ctld.commands == [CANCEL]


def test_a_former_holder_runs_and_tells_nothing(site: Site) -> None:
    site.ctld.put(job(7))
    site.over_to_b()
    site.b.acting.publisher.run_once()
    before = site.read(agent_key(CLUSTER))
    order = site.order(Verb.CANCEL, attempt=ATTEMPT, slurm_job=7)
    site.a.acting.executor.take(order.to_json().decode())
    site.a.acting.executor.work()
    doc = AttemptDoc(
        attempt=ATTEMPT, cluster=CLUSTER, slurm_job=7, restart=0, state=SlurmState.FAILED, seen_at=site.clock.now()
    )
    site.a.acting.outbox.keep(Reading(documents={attempt_key(ATTEMPT): doc.to_json()}))
    site.a.acting.announce()
    site.a.acting.publisher.run_once()
    assert site.ctld.commands == []
    assert site.read(agent_key(CLUSTER)) == before
    with pytest.raises(site.cloud.client("s3").exceptions.NoSuchKey):
        site.read(attempt_key(ATTEMPT))
    assert site.a.acting.outbox.waiting(0, 10)[-1].type is NewsType.STARTED  # type: ignore[arg-type]


def test_what_a_former_holder_still_had_to_tell_is_forgotten_when_it_acts_again(site: Site) -> None:
    site.a.acting.outbox.keep(Reading(documents={"clusters/lab/old": b"{}"}, memory={"watch/job/7": b"old"}))
    site.over_to_b()
    site.clock.forward(183)
    assert site.a.try_()
    assert unwritten(site.a.acting.outbox, "clusters/lab/old") is None
    assert site.a.acting.outbox.items("watch/") == {}


def test_a_restart_of_the_same_agent_forgets_nothing(site: Site) -> None:
    site.a.acting.outbox.keep(Reading(documents={"clusters/lab/old": b"{}"}, memory={"watch/job/7": b"old"}))
    assert site.a.try_()
    assert unwritten(site.a.acting.outbox, "clusters/lab/old") == b"{}"
    assert site.a.acting.outbox.items("watch/") == {"watch/job/7": b"old"}


def test_messages_that_come_too_late_are_handed_on_at_once(site: Site) -> None:
    site.ctld.put(job(7))
    site.send(site.order(Verb.CANCEL, attempt=ATTEMPT, slurm_job=7))
    site.clock.forward(183)
    site.a.acting.orders.poll(0)
    site.cloud.clock.run_until(lambda: False, limit=timedelta(seconds=2))  # far less than a message is hidden for
    assert site.b.try_()
    site.b.run_once()
    assert site.answer().outcome is Outcome.DONE


def test_the_heartbeat_says_who_acts_and_who_would_take_over(site: Site) -> None:
    assert not site.b.try_()
    site.clock.forward(61)
    assert site.a.acting._lease is not None
    site.a.acting._lease.run_once()
    site.a.acting.publisher.run_once()
    heartbeat = AgentDoc.from_json(site.read(agent_key(CLUSTER)))
    assert heartbeat.epoch == 1
    assert heartbeat.host
    assert heartbeat.standbys == ()  # `is_once` has left again
    assert others_on(site.b.settings, site.b.clients, site.clock) == [heartbeat.agent_id]


def test_while_s3_is_away_a_restarted_agent_looks_and_does_nothing(site: Site) -> None:
    """What it sees of Slurm meanwhile would be forgotten there."""
    site.ctld.put(job(7))
    site.a.s3.error = AWAY
    assert site.a.try_()
    order = site.order(Verb.CANCEL, attempt=ATTEMPT, slurm_job=7)
    site.a.acting.executor.take(order.to_json().decode())
    site.a.acting.executor.work()
    assert site.ctld.commands == []
    site.a.watcher.readings.append(Reading(documents={"clusters/lab/seen": b"{}"}))
    site.a.acting.watch.run_once()
    site.a.s3.error = None
    assert site.a.acting._lease is not None
    site.a.acting._lease.run_once()
    site.a.acting.executor.work()
    site.a.acting.publisher.run_once()
    assert site.read("clusters/lab/seen") == b"{}"
    assert site.ctld.commands == [CANCEL]
    assert LeaseDoc.from_json(site.read(lease_key(CLUSTER))).epoch == 2


def test_slurms_commands_are_not_run_without_the_lease_and_end_with_it(site: Site) -> None:
    holding = site.a.ground.holding
    assert holding is not None
    runner = Runner(environ={"PATH": "/usr/bin:/bin"}, holding=holding)
    assert runner.change(["echo", "x"]) == "x\n"
    site.clock.forward(149.7)
    with pytest.raises(Exception, match=r"sleep did not end within 0\.3 s"):
        runner.change(["sleep", "60"])
    site.clock.forward(1)
    with pytest.raises(NotHolder, match="echo was not run: another agent may act by now"):
        runner.change(["echo", "x"])
    assert runner.read(["echo", "x"]) == "x\n"


def test_forged_tokens_in_the_lease_start_nothing(site: Site) -> None:
    site.ctld.put(job(7))
    assert not site.b.try_()
    doc = LeaseDoc.from_json(site.read(lease_key(CLUSTER)))
    wire = doc.to_wire() | {"v": 1, "begun": [{"token": "no-such-order", "at": START.isoformat()}]}
    site.store.put_object(Bucket=BUCKET, Key=lease_key(CLUSTER), Body=json.dumps(wire).encode())
    site.clock.forward(183)
    assert site.b.try_()
    site.b.run_once()
    assert site.ctld.commands == []
    assert site.b.acting.journal.open() == ()
