"""The lease of a cluster over S3's own conditional writes, with two agents on two hosts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from localcloud.cloud import Cloud
from rekindle.protocol.cluster.lease import MAX_TERM_S, LeaseDoc, lease_key, standby_key
from rekindle.slurm_agent.base.ports import NotHolder
from rekindle.slurm_agent.leases.lease import Lease, LeaseState
from rekindle.slurm_agent.leases.store import AgentIdentity, standing_by
from tests.agent.ctld import START
from tests.agent.world import BUCKET, CLUSTER, ManualClock, Network, empty

AWAY = EndpointConnectionError(endpoint_url="https://s3")
TERM_S = 60.0


class Store:
    """S3 itself, whose answers carry the date of a clock of the test's, as do the objects that were written by it."""

    def __init__(self, s3: Any, clock: ManualClock) -> None:
        self._s3 = s3
        self._clock = clock
        self._written: dict[str, Any] = {}

    def put_object(self, **arguments: Any) -> Any:
        answer = self._s3.put_object(**arguments)
        self._written[arguments["Key"]] = self._clock.now()
        return answer

    def get_object(self, **arguments: Any) -> Any:
        answer = self._dated(self._s3.get_object(**arguments))
        answer["LastModified"] = self._written[arguments["Key"]].replace(microsecond=0)
        return answer

    def list_objects_v2(self, **arguments: Any) -> Any:
        answer = self._dated(self._s3.list_objects_v2(**arguments))
        for entry in answer.get("Contents", ()):
            entry["LastModified"] = self._written[entry["Key"]].replace(microsecond=0)
        return answer

    def _dated(self, answer: Any) -> Any:
        answer["ResponseMetadata"]["HTTPHeaders"]["date"] = self._clock.now().strftime("%a, %d %b %Y %H:%M:%S GMT")
        return answer


@dataclass
class Host:
    """A head node with an agent; `lag` is how far its clock is off."""

    name: str
    store: Store
    time: ManualClock
    lag: timedelta = timedelta(0)
    last_epoch: int = 0
    boot: str = ""
    road: Network = field(init=False)
    lease: Lease = field(init=False)

    def __post_init__(self) -> None:
        self.road = Network(self.store)
        self.restart()

    def restart(self) -> Lease:
        who = AgentIdentity(
            cluster=CLUSTER,
            agent_id=f"{self.name}-1",
            host=self.name,
            boot=self.boot or f"boot-{self.name}",
            last_epoch=self.last_epoch,
        )
        self.lease = Lease(who=who, s3=self.road, bucket=BUCKET, clock=self, term_s=TERM_S)
        return self.lease

    def now(self) -> Any:
        return self.time.now() + self.lag

    def monotonic(self) -> float:
        return self.time.monotonic() * 1.0 + 17.0

    def wall(self) -> Any:
        return self.now()

    def is_sure(self) -> bool:
        return True

    def run_once(self) -> LeaseState:
        self.lease.run_once()
        return self.lease.standing


@dataclass
class Cluster:
    cloud: Cloud
    time: ManualClock
    store: Store
    a: Host
    b: Host

    def doc(self) -> LeaseDoc:
        return LeaseDoc.from_json(self.raw())

    def raw(self) -> bytes:
        return bytes(self.store.get_object(Bucket=BUCKET, Key=lease_key(CLUSTER))["Body"].read())

    def put(self, body: bytes, key: str = lease_key(CLUSTER)) -> None:
        self.store.put_object(Bucket=BUCKET, Key=key, Body=body)

    def know_each_other(self) -> None:
        """A holds, B stands by, and A has seen it."""
        assert self.a.run_once() is LeaseState.HELD
        assert self.b.run_once() is LeaseState.STANDBY
        self.time.forward(TERM_S)
        assert self.a.run_once() is LeaseState.HELD
        assert self.doc().term_s == TERM_S


@pytest.fixture
def two(cloud: Cloud) -> Cluster:
    empty(cloud)
    time = ManualClock()
    store = Store(cloud.client("s3"), time)
    a, b = Host("ctl1", store, time), Host("ctl2", store, time, lag=timedelta(hours=-7))
    return Cluster(cloud, time, store, a, b)


def test_one_of_two_holds_it_and_the_other_is_there(two: Cluster) -> None:
    two.know_each_other()
    assert two.a.lease.others == ("ctl2-1",)
    assert (two.doc().holder, two.doc().host, two.doc().epoch) == ("ctl1-1", "ctl1", 1)
    assert two.a.lease.left_s() == 50  # ten seconds less than what others wait for
    assert two.b.lease.left_s() == 0
    with pytest.raises(NotHolder):
        two.b.lease.begin("order-1", START)


def test_of_two_that_try_at_once_one_wins(two: Cluster) -> None:
    """Both have read that there is none."""
    seen = two.b.lease.read()
    assert seen is None
    assert two.a.run_once() is LeaseState.HELD
    two.b.lease._take(None, etag=None)
    assert two.b.lease.standing is LeaseState.STANDBY
    assert two.doc().holder == "ctl1-1"


def test_a_standby_takes_over_a_term_after_the_last_renewal_and_not_before(two: Cluster) -> None:
    two.know_each_other()
    two.time.forward(TERM_S)
    assert two.b.run_once() is LeaseState.STANDBY
    assert two.a.lease.left_s() == 0  # long since
    two.time.forward(3)
    assert two.b.run_once() is LeaseState.HELD
    assert two.doc().epoch == 2
    assert two.a.run_once() is LeaseState.LOST
    assert "ctl2-1 on ctl2 has taken the lease, epoch 2" in two.a.lease.problem


def test_a_renewal_in_time_keeps_it(two: Cluster) -> None:
    two.know_each_other()
    for _ in range(20):
        two.time.forward(15)
        assert two.a.run_once() is LeaseState.HELD
        assert two.b.run_once() is LeaseState.STANDBY
        assert two.a.lease.left_s() == 50
    assert two.doc().epoch == 1


def test_a_holder_that_cannot_renew_stops_before_another_may_act(two: Cluster) -> None:
    two.know_each_other()
    two.a.road.error = AWAY
    acted = []
    for second in range(120):
        two.time.forward(1)
        two.a.run_once()
        two.b.run_once()
        acted.append((two.a.lease.left_s() > 0, two.b.lease.left_s() > 0))
        assert acted[-1] != (True, True), second
    assert acted[0] == (True, False)
    assert acted[-1][1]  # the other acts
    two.a.road.error = None
    assert two.a.run_once() is LeaseState.LOST


def test_alone_it_goes_on_for_three_terms_without_s3_and_is_itself_again_when_it_is_back(two: Cluster) -> None:
    assert two.a.run_once() is LeaseState.HELD
    two.a.road.error = AWAY
    two.time.forward(149)
    two.a.run_once()
    assert two.a.lease.left_s() == 1
    two.a.lease.begin("order-1", two.time.now())  # written down when S3 is back
    two.time.forward(2)
    assert two.a.lease.left_s() == 0
    two.time.forward(10_000)
    two.a.run_once()
    assert two.a.lease.standing is LeaseState.HELD
    assert two.a.lease.left_s() == 0
    two.a.road.error = None
    assert two.a.run_once() is LeaseState.HELD
    assert two.a.lease.left_s() == 150
    assert [order.token for order in two.doc().begun] == ["order-1"]
    assert two.doc().epoch == 1  # nobody else has acted since


def test_where_another_is_known_nothing_is_begun_that_cannot_be_written_down(two: Cluster) -> None:
    two.know_each_other()
    two.a.road.error = AWAY
    with pytest.raises(NotHolder):
        two.a.lease.begin("order-1", two.time.now())


def test_one_that_comes_shortens_the_term_of_one_that_was_alone(two: Cluster) -> None:
    assert two.a.run_once() is LeaseState.HELD
    assert two.doc().term_s == 180
    two.time.forward(100)  # no renewal yet: it died
    assert two.b.run_once() is LeaseState.STANDBY
    two.time.forward(79)
    assert two.b.run_once() is LeaseState.STANDBY
    two.time.forward(4)
    assert two.b.run_once() is LeaseState.HELD


def test_a_shorter_term_counts_from_when_it_was_sent_though_the_answer_is_lost(two: Cluster) -> None:
    """Others wait for what stands there."""
    assert two.a.run_once() is LeaseState.HELD
    assert two.b.run_once() is LeaseState.STANDBY
    two.time.forward(TERM_S)
    answered = two.a.road
    two.a.lease._s3 = Lossy(answered)
    two.a.run_once()  # written, and its answer lost
    assert two.doc().term_s == TERM_S
    assert two.a.lease.left_s() == 50
    assert two.a.run_once() is LeaseState.HELD  # the next pass finds its own renewal there


@dataclass
class Lossy:
    """What is written is there; the answer is lost, once."""

    s3: Any
    is_done: bool = False

    def __getattr__(self, name: str) -> Any:
        def call(**arguments: Any) -> Any:
            answer = getattr(self.s3, name)(**arguments)
            if name == "put_object" and not self.is_done:
                self.is_done = True
                raise AWAY
            return answer

        return call


def test_a_former_holder_begins_nothing_however_long_it_was_paused(two: Cluster) -> None:
    """Its own clock stood still, so that it believes that it still holds the lease."""
    two.know_each_other()
    frozen = ManualClock()
    frozen.at = two.time.at
    two.a.time = frozen
    two.time.forward(63)
    assert two.b.run_once() is LeaseState.HELD
    assert two.a.lease.left_s() > 0
    with pytest.raises(NotHolder):
        two.a.lease.begin("order-1", frozen.now())
    assert two.a.lease.left_s() == 0
    assert two.a.lease.standing is LeaseState.LOST


def test_what_is_begun_is_known_to_the_next(two: Cluster) -> None:
    two.know_each_other()
    two.a.lease.begin("order-1", two.time.now())
    two.a.lease.begin("order-1", two.time.now())
    two.a.lease.begin("order-2", two.time.now())
    two.time.forward(63)
    two.b.run_once()
    assert two.b.lease.previous is not None
    assert [order.token for order in two.b.lease.previous.begun] == ["order-1", "order-2"]
    assert [order.token for order in two.doc().begun] == ["order-1", "order-2"]


def test_many_orders_stay_readable(two: Cluster) -> None:
    two.know_each_other()
    for number in range(310):
        two.a.lease.begin(f"{number:0128d}", two.time.now())
    assert len(two.doc().begun) == 300
    assert two.doc().begun[-1].token == f"{309:0128d}"


def test_given_back_it_is_the_others_at_once(two: Cluster) -> None:
    two.know_each_other()
    two.a.lease.give_back()
    assert two.a.lease.left_s() == 0
    assert two.b.run_once() is LeaseState.HELD
    assert standing_by(two.store, BUCKET, CLUSTER) == [(standby_key(CLUSTER, "ctl2-1"), "ctl2-1")]


def test_a_restart_on_the_same_machine_has_it_back_at_once_and_after_a_reboot_waits(two: Cluster) -> None:
    two.know_each_other()
    two.time.forward(5)
    two.a.restart()
    assert two.a.run_once() is LeaseState.HELD
    assert two.doc().epoch == 2
    two.a.boot = "another boot, or a copy of the state directory on another machine"
    two.a.restart()
    assert two.a.run_once() is LeaseState.STANDBY


@pytest.mark.parametrize(
    "forged",
    [
        b"",
        b"garbage",
        b"\xff\xfe",
        b"[" * 100_000,
        b"{}",
        b"x" * 300_000,
        json.dumps({"v": 1, "cluster": CLUSTER, "holder": "../x", "term_s": 1}).encode(),
    ],
)
def test_garbage_is_told_and_replaced_when_it_is_old(two: Cluster, forged: bytes) -> None:
    two.know_each_other()
    two.put(forged)
    assert two.a.run_once() is LeaseState.LOST
    assert "lease.json is no lease" in two.a.lease.problem
    a = two.a.restart()
    assert two.a.run_once() is LeaseState.STANDBY
    assert "it is replaced when it is 180 s old, or remove it" in a.problem
    assert two.b.run_once() is LeaseState.STANDBY
    two.time.forward(MAX_TERM_S + 3)
    assert {two.a.run_once(), two.b.run_once()} == {LeaseState.HELD, LeaseState.STANDBY}
    assert two.doc().epoch >= 1


@pytest.mark.parametrize(
    "change",
    [
        {"holder": "mallory", "epoch": 10**9, "term_s": 180.0},
        {"cluster": "another"},
        {"term_s": 10**6},
        {"epoch": 10**30},
        {"renewal": -1},
        {"begun": [{"token": "../../etc/passwd", "at": "2026-01-01T00:00:00Z"}]},
        {"begun": [1]},
        {"host": "x\x1b[2J"},
    ],
)
def test_a_forged_holder_is_over_after_three_minutes(two: Cluster, change: dict[str, Any]) -> None:
    two.know_each_other()
    two.put(json.dumps(json.loads(two.raw()) | {"process": "mallory"} | change).encode())
    assert two.a.run_once() is LeaseState.LOST
    two.time.forward(MAX_TERM_S + 3)
    assert two.b.run_once() is LeaseState.HELD
    two.time.forward(15)
    assert two.b.run_once() is LeaseState.HELD


def test_a_lease_that_was_removed_is_made_anew(two: Cluster) -> None:
    two.know_each_other()
    two.cloud.client("s3").delete_object(Bucket=BUCKET, Key=lease_key(CLUSTER))
    assert two.a.run_once() is LeaseState.LOST
    assert two.b.run_once() is LeaseState.HELD


def test_stopped_by_an_operator_nobody_acts_until_it_is_taken_back(two: Cluster) -> None:
    two.know_each_other()
    operator = Host("ctl2", two.store, two.time)
    was = operator.lease.stop_all()
    assert was is not None
    assert was.holder == "ctl1-1"
    with pytest.raises(NotHolder):
        two.a.lease.begin("order-1", two.time.now())
    assert two.a.lease.standing is LeaseState.LOST
    two.a.restart()
    two.time.forward(10_000)
    for host in (two.a, two.b):
        assert host.run_once() is LeaseState.STANDBY
        assert host.lease.problem == "all agents were stopped by an operator on ctl2"
    operator.lease.start_all()
    assert two.b.run_once() is LeaseState.HELD


def test_a_stop_that_is_taken_back_at_once_still_waits_for_the_former_holder(two: Cluster) -> None:
    """It cannot have heard of it."""
    two.know_each_other()
    operator = Host("ctl2", two.store, two.time)
    operator.lease.stop_all()
    operator.lease.start_all()
    assert two.b.run_once() is LeaseState.STANDBY
    assert two.a.lease.left_s() > 0
    two.time.forward(63)
    assert two.a.lease.left_s() == 0
    assert two.b.run_once() is LeaseState.HELD


def test_with_memory_of_the_last_epoch_it_is_taken_only_where_nobody_else_held_it(two: Cluster) -> None:
    two.know_each_other()
    two.a.last_epoch = 1
    two.a.boot = "after a reboot"
    for is_only in (True, False):
        two.a.restart()
        two.a.lease.is_only_ours = is_only
        assert two.a.run_once() is LeaseState.STANDBY
    two.time.forward(63)
    assert two.b.run_once() is LeaseState.HELD
    two.b.lease.give_back()
    two.a.restart()
    two.a.lease.is_only_ours = True
    assert two.a.run_once() is LeaseState.LOST


def test_a_missing_right_is_told_and_nothing_is_done(two: Cluster) -> None:
    refusal = {"Error": {"Code": "AccessDenied", "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
    two.a.road.error = ClientError(refusal, "GetObject")  # type: ignore[arg-type]
    assert two.a.run_once() is LeaseState.STANDBY
    assert "AccessDenied" in two.a.lease.problem


def test_no_two_contents_of_the_lease_are_equal(two: Cluster) -> None:
    """An ETag that came again would let a former holder's write through."""
    two.know_each_other()
    tags = set()
    for _ in range(10):
        two.a.run_once()
        found = two.b.lease.read()
        assert found is not None
        tags.add(found.etag)
    assert len(tags) == 10


def test_the_document_survives_its_own_wire(two: Cluster) -> None:
    two.know_each_other()
    doc = replace(two.doc(), stopped_on="ctl9")
    assert LeaseDoc.from_json(doc.to_json()) == doc
